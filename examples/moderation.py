"""Moderation: let a text pass, hold it back, or ask a person.

The demo model knows sections of an archive and no hateful or harmless posts, so "games" plays what is not wanted here.
"""

import estream
from demo import package

TEMPLATE = "Description: {text}\nSection: "
LABELS = ["admin", "devel", "doc", "games", "graphics", "libs", "net", "python", "science", "sound", "text", "utils"]
HELD_BACK = {"games"}
TEXTS = [
    "Play chess across 3 boards. There are three boards, stacked vertically.",
    "Tool to inspect and change routing tables of the kernel.",
    "Something.",
]

with estream.load(package()) as model:
    for text, found in zip(TEXTS, model.classify(TEXTS, LABELS, template=TEMPLATE, truncate=True), strict=True):
        # What no label covers says how far the labels can be trusted.
        if found.probability < 0.5 or found.outside > 0.5:
            decision = "ask a person"
        else:
            decision = "hold back" if found.label in HELD_BACK else "pass"
        print(f"{decision:<12} {found.label:<8} {found.probability:.2f} {text}")
