"""Each fuzzer's kept inputs, and two seconds of random ones, in a process of its own: its audit hook cannot be taken away."""

import json
import os
import subprocess
import sys

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT))
from fuzz.harness import CORPUS
from fuzz.targets import NAMES, load_target, open_inputs

SECONDS = 2


@pytest.mark.parametrize("name", NAMES)
def test_a_target_has_no_finding(name: str):
    command = [sys.executable, "-m", "fuzz.worker", name, "--seconds", str(SECONDS), "--mended"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, f"{result.stdout[-1000:]}\n{result.stderr[-4000:]}"
    *findings, last = map(json.loads, result.stdout.splitlines())
    assert not findings
    kept = [path for path in load_target(name).inputs() if f"{name}/{path.name}" not in open_inputs()]
    assert last["inputs"] >= len(kept) > 0


def test_the_corpus_is_small_and_every_open_input_is_in_it():
    files = {f"{path.parent.name}/{path.name}": path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()}
    assert sum(files.values()) < 1 << 20
    assert {name.partition("/")[0] for name in files} == set(NAMES)
    assert {name for name in open_inputs() if not name.endswith("/*")} <= set(files)
    assert os.listdir(CORPUS)
