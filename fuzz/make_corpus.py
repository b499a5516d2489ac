"""Writes the first inputs of each target: ``python -m fuzz.make_corpus [TARGET ...]``. Found ones stand beside them."""

import sys

from fuzz.targets import NAMES, load_target

for name in sys.argv[1:] or NAMES:
    target = load_target(name)
    target.corpus.mkdir(parents=True, exist_ok=True)
    for file, data in target.seeds().items():
        (target.corpus / file).write_bytes(data)
