"""Files that say how a checkpoint is meant to be used go into its package under plain names, within bounds."""

import json
import shutil
from pathlib import Path

import pytest
from paths import DEMO

import estream
from estream.checkpoint.about import about_files
from estream.errors import CheckpointError
from estream.package.about import LARGEST_ABOUT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO, tmp_path / "source"))


def pooling(folder: Path, name: str, **mode: bool) -> None:
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps({"word_embedding_dimension": 256, **mode}))


def test_they_are_copied_and_heeded(folder: Path, tmp_path: Path):
    pooling(folder, "1_Pooling", pooling_mode_mean_tokens=True)
    (folder / "modules.json").write_text(json.dumps([{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]))
    prompts = {"prompts": {"query": "Query: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    package = estream.convert(folder, tmp_path / "p.estream")
    assert {"generation_config.json", "pooling.json", "modules.json"} <= set(package.manifest.files)
    with estream.load(package.path) as model:
        assert model.about["generation_config.json"]["eos_token_id"] == 0
        assert (model.embed("chess").vector == model.embed("chess", pooling="mean").vector).all()
        assert (model.embed("chess").vector != model.embed("chess", pooling="last").vector).any()
        assert (model.embed("chess", prompt_name="query").vector == model.embed("Query: chess").vector).all()


def test_modules_say_where_the_pooling_is(folder: Path):
    pooling(folder, "2_Pooling", pooling_mode_lasttoken=True)
    (folder / "modules.json").write_text(json.dumps([{"path": "2_Pooling", "type": "x.Pooling"}]))
    assert json.loads(dict(about_files(folder))["pooling.json"])["pooling_mode_lasttoken"]


def test_a_checkpoint_without_them_has_none(folder: Path):
    (folder / "generation_config.json").unlink()
    assert dict(about_files(folder)) == {}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules.json", '[{"path": "../secret", "type": "x.Pooling"}]', "must be the name of a folder"),
        ("modules.json", '[{"path": "/etc", "type": "x.Pooling"}]', "must be the name of a folder"),
        ("generation_config.json", "5", "expected a JSON object or list"),
        ("generation_config.json", "[" * 3000 + "]" * 3000, "nested|JSON"),
        ("generation_config.json", '{"temperature": NaN}', "NaN|nan|Out of range"),
        ("config_sentence_transformers.json", '{"a": "' + "x" * LARGEST_ABOUT + '"}', "cannot be read"),
        ("config_sentence_transformers.json", '{"a": "\\ud800"}', "surrogates"),
    ],
)
def test_what_is_none_is_refused_by_name(folder: Path, name: str, content: str, message: str):
    (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=message) as error:
        dict(about_files(folder))
    assert name in str(error.value)
