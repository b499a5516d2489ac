"""The demo model's package, for the other examples."""

import sys
import tempfile
from pathlib import Path

import estream

_DEMO = Path(__file__).resolve().parents[1] / "demo/debian-sections"


def package() -> Path:
    """The package named on the command line; else the demo model, converted."""
    if len(sys.argv) > 1:
        return Path(sys.argv[1])
    path = Path(tempfile.mkdtemp(prefix="estream-demo-")) / "demo.estream"
    estream.convert(_DEMO, path)
    return path
