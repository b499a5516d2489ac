"""Files of weights that an index names."""

import json
from pathlib import Path

import layouts
from layouts import SHAPE, data
from tiny import make_olmoe

from estream.conversion.convert import convert

#: Neither rows nor columns are multiples of 128.


def test_an_index_may_name_a_file_in_a_folder_below(tmp_path: Path):
    make_olmoe(tmp_path / "source", SHAPE)
    expected = data(convert(tmp_path / "source", tmp_path / "a.estream"))
    (tmp_path / "source/w").mkdir()
    names = list(layouts.load(tmp_path / "source"))
    (tmp_path / "source/model.safetensors").rename(tmp_path / "source/w/model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "w/model.safetensors")}
    (tmp_path / "source/model.safetensors.index.json").write_text(json.dumps(index))
    package = convert(tmp_path / "source", tmp_path / "b.estream")
    assert data(package) == expected
    assert set(package.manifest.source["files"]) == {"config.json", "w/model.safetensors"}
