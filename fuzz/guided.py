"""``python -m fuzz.guided``: fuzz.worker with estream's branches counted, which has to begin before the first import of it."""

import sys

import atheris

with atheris.instrument_imports(include=["estream"], enable_loader_override=False):
    from fuzz.targets import load_target
    from fuzz.worker import main

    load_target(sys.argv[1])

if __name__ == "__main__":
    main()
