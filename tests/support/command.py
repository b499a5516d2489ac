"""Running the command line in this process or in one of its own."""

import subprocess
from pathlib import Path

from cgroup import estream_command


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(estream_command(*arguments), capture_output=True, text=True, check=False)
