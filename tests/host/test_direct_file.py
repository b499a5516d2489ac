"""Files are written and read once past the page cache, or through it where a file system refuses that, at whatever time."""

import os
import subprocess
from pathlib import Path

import pytest
from cgroup import estream_command
from paths import DEMO
from preloaded import NO_DIRECT, build

from estream.package.package import Package

SAID = "no direct I/O, so files are read and written through the page cache"


@pytest.mark.parametrize("at", ["open", "read", "write", "read write", "neither"])
def test_a_file_system_may_refuse_direct_io_at_any_time(at: str, demo_package: Package, tmp_path: Path):
    library = build(NO_DIRECT, tmp_path)
    env = os.environ | {"LD_PRELOAD": str(library), "REFUSED_AT": at}
    command = estream_command("convert", DEMO, tmp_path / "x.estream")
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count(SAID) == (at not in ("open", "neither"))
    for name in ("pages.bin", "embedding.bin"):
        assert (tmp_path / "x.estream" / name).read_bytes() == (demo_package.path / name).read_bytes()
