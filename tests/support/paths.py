"""Where the project, its demo model and its texts lie."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "demo/debian-sections"
HELD_OUT = ROOT / "demo/held_out.jsonl"
#: From the training side: no text in it is held out.
CALIBRATION = ROOT / "demo/calibration.txt"
