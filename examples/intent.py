"""Intent: which team a text goes to. With a prior, a label that the model likes without any text has no advantage."""

import estream
from demo import package

TEAMS = {"net": "network", "sound": "media", "graphics": "media", "python": "languages", "perl": "languages", "games": "games"}
TEXTS = [
    "DNS server that answers queries from a database",
    "Python module to parse configuration files",
    "Editor for digital audio recordings",
]

with estream.load(package()) as model:
    found = model.classify(TEXTS, list(TEAMS), template="Description: {text}\nSection: ", prior=True)
    for text, each in zip(TEXTS, found, strict=True):
        print(f"{TEAMS[each.label]:<10} {each.probability:.2f} {text}")
