"""``python -m estream.integrations.lm_eval``: the command ``lm-eval``, with the model ``estream`` registered."""

import importlib
import os

from estream.cli import guard, streams


def main() -> None:
    """Run lm-eval's command line; what estream refuses is said in one line."""
    streams.repair()
    guard.run(_evaluate)


def _evaluate() -> int:
    # Beside a model that is read from disk, forks of the tokenizer's threads gain nothing.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from lm_eval.__main__ import cli_evaluate

    # Importing the model registers it.
    importlib.import_module("estream.integrations.lm_eval.model")
    cli_evaluate()
    return 0


if __name__ == "__main__":
    main()
