"""Peak memory of a piece of Python, in a process of its own."""

import subprocess
import sys
from pathlib import Path

# The kernel's high-water mark of this process. That of getrusage begins at what the parent held when it forked.
_PROGRAM = """
import re, sys
{setup}
def value(name):
    return int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
open("/proc/self/clear_refs", "w").write("5")
base = value("VmRSS")
{body}
print(value("VmHWM") - base)
"""


def peak_bytes(setup: str, body: str, *arguments: str | Path) -> int:
    """How far memory rose above what it was after ``setup`` while ``body`` ran; both see ``sys.argv``."""
    command = [sys.executable, "-c", _PROGRAM.format(setup=setup, body=body), *map(str, arguments)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
