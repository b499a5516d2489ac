"""``estream convert``, ``inspect`` and ``verify`` of one package."""

import json
import shutil
from pathlib import Path

from command import run
from paths import DEMO

from estream.package.package import Package


def test_convert_inspect_and_verify(tmp_path: Path):
    target = tmp_path / "demo.estream"
    facts = json.loads(run("convert", DEMO, target, "--bits", "8", "--json").stdout)
    assert facts["quantization"].items() >= {"expert_bits": 8, "dense_bits": 8, "group": 64}.items()
    assert json.loads(run("inspect", target, "--json").stdout) == {k: v for k, v in facts.items() if k != "seconds"}
    shown = run("inspect", target).stdout
    for word in ("olmoe", "16 experts", "8.25 bits", "tokenizer"):
        assert word in shown
    assert "every checksum is right" in run("verify", target).stdout
    assert json.loads(run("verify", target, "--json").stdout)["damaged"] == []
    with open(target / "pages.bin", "r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    broken = run("verify", target)
    assert (broken.returncode, len(broken.stderr.splitlines())) == (1, 1)
    assert "layer 0 attention at offset 0: wrong checksum" in broken.stderr


def test_names_with_brackets_are_printed_as_they_are(demo_package: Package, tmp_path: Path):
    package = shutil.copytree(demo_package.path, tmp_path / "[bold] [/x]" / "y.estream")
    for command in ("inspect", "verify"):
        result = run(command, package)
        assert result.returncode == 0
        assert str(package) in result.stdout
