"""What a conversion needs is refused before it is taken, in real control groups: never killed."""

import re
from pathlib import Path

import numpy as np
import pytest
from cgroup import estream_command, memory_group
from paths import DEMO

from estream.checkpoint.opening import open_checkpoint
from estream.conversion import convert as conversion
from estream.conversion import memory
from estream.conversion.memory import Beside, choose_pace
from estream.errors import BudgetError
from estream.host.read_ahead import Limits
from estream.host.sizes import MiB
from estream.models import family_of
from estream.models.reading import read_model
from estream.package.layout import Quantization, build_tape
from estream.package.writer import PackageSpec

#: What the program itself takes when it looks, and what the group counts beside that.
PROGRAM, COUNTED = 62, 16


@pytest.mark.parametrize("limit", [100, 140, 180])
def test_a_calibration_that_does_not_fit_is_refused(limit: int, tmp_path: Path):
    text = DEMO.parent / "calibration.txt"
    with memory_group(limit * MiB) as group:
        done = group.run(estream_command("convert", DEMO, tmp_path / "x.estream", "--calibrate", text))
    assert done.returncode == 1, done.stderr
    assert re.search("converting needs .* and --calibrate takes", done.stderr)
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_calibration_fits_where_it_is_not_refused(tmp_path: Path):
    np.save(tmp_path / "ids.npy", np.random.default_rng(1).integers(0, 8192, 4096))
    command = estream_command("convert", DEMO, tmp_path / "x.estream", "--calibrate", tmp_path / "ids.npy")
    with memory_group(100 * MiB) as group:
        refused = group.run(command)
    needed = re.search(r"converting needs ([0-9.]+) MiB", refused.stderr)
    assert needed, refused.stderr
    with memory_group((PROGRAM + COUNTED + round(float(needed[1]))) * MiB) as group:
        done = group.run(command)
    assert done.returncode == 0, done.stderr


def test_what_lies_beside_the_pages_is_counted_and_named(monkeypatch: pytest.MonkeyPatch):
    checkpoint = open_checkpoint(str(DEMO))
    family = family_of(checkpoint.config)
    config = read_model(family, checkpoint.config, [tensor.shape for tensor in checkpoint.tensors.values()])
    tensors = family.tensors(config, frozenset(checkpoint.tensors))
    quantization = Quantization.choose(config, 4, 8, 64)
    spec = PackageSpec("cpu", config, quantization, "bfloat16", False, {}, None)
    tape = build_tape(config, quantization)

    def least(beside: Beside) -> tuple[int, str]:
        """The memory from which on it is not refused, in MiB, and the refusal below that."""
        words = ""
        for free in range(1, 4096):
            monkeypatch.setattr(memory.limits, "free_bytes", lambda free=free: free * MiB)
            try:
                choose_pace(spec, checkpoint, tensors, tape, Limits(3, 64 * MiB), beside)
            except BudgetError as error:
                words = str(error)
            else:
                return free, words
        raise AssertionError

    alone, words = least(Beside())
    assert "takes" not in words
    calibrated, words = least(Beside(text=300 * MiB))
    assert "and --calibrate takes 300 MiB;" in words
    npu, more = least(Beside(held=500 * MiB, reordered=True))
    assert "and --device qnn takes 5" in more
    assert calibrated >= 300 + alone - 12
    assert npu >= 500 + alone
    assert conversion.READING.bytes == 64 * MiB
