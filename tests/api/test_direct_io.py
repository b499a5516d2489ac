"""End to end: packages are read past the page cache where the file system can, elsewhere through it with the same bits."""

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from demo_answers import IDS
from preloaded import NO_DIRECT_READS, build, run_behind

import estream
from estream import _native
from estream.api.model import Model
from estream.engine.options import LoadOptions
from estream.package.package import Package

PROGRAM = """
import ctypes, sys, numpy as np, estream
faults_made = ctypes.CDLL(None).faults_made
with estream.load(sys.argv[1]) as model:
    result = model.prefill(np.load(sys.argv[2]))
np.save(sys.argv[3], result.logits)
print(result.stats.direct_io, faults_made())
"""


@pytest.mark.parametrize("at", ["open", "read", "neither"])
def test_a_file_system_may_refuse_direct_reads_at_either_time(at: str, demo_package: Package, demo_logits, tmp_path: Path):
    np.save(tmp_path / "ids.npy", IDS)
    library, arguments = build(NO_DIRECT_READS, tmp_path), (demo_package.path, tmp_path / "ids.npy", tmp_path / "logits.npy")
    direct_io, refusals = run_behind(library, PROGRAM, *arguments, REFUSED_AT=at).split()
    np.testing.assert_array_equal(np.load(tmp_path / "logits.npy"), demo_logits)
    # Pages and embedding rows are files of their own.
    assert int(refusals) >= (0 if at == "neither" else 2)
    assert direct_io == str(at == "neither" and _reads_directly(demo_package.pages_path))


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[list[Path]]:
    """One on the disk and one in memory."""
    with tempfile.TemporaryDirectory(prefix="estream test ", dir="/dev/shm") as memory:
        yield [tmp_path, Path(memory)]


def test_a_read_only_package_is_read_directly_exactly_where_its_file_system_can(folders, demo_package, demo_logits):
    for folder in folders:
        path = shutil.copytree(demo_package.path, folder / "x.estream")
        for file in path.iterdir():
            file.chmod(0o444)
        path.chmod(0o555)
        try:
            with estream.load(path) as model:
                result = model.prefill(IDS)
            np.testing.assert_array_equal(result.logits, demo_logits)
            assert result.stats.direct_io is _reads_directly(path / "pages.bin")
        finally:
            path.chmod(0o755)


def test_buffered_reads_may_be_asked_for(demo_package: Package, demo_logits: np.ndarray):
    with Model(demo_package, LoadOptions(direct_io=False)) as model:
        result = model.prefill(IDS)
    assert result.stats.direct_io is False
    np.testing.assert_array_equal(result.logits, demo_logits)


def _reads_directly(path: Path) -> bool:
    """Whether the system reads this file past the page cache, and from a disk."""
    if _native.memory_backed(path):
        return False
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        return os.preadv(handle, [mmap.mmap(-1, 4096)], 0) == 4096
    except OSError:
        return False
    finally:
        os.close(handle)
