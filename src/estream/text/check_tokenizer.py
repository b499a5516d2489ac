"""Trying a checkpoint's tokenizer before it goes into a package: a damaged one may end the process that opens it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from estream.errors import CheckpointError
from estream.host.sizes import format_bytes
from estream.text import tokenizer_child
from estream.text.open_tokenizer import LARGEST_FILE

_SECONDS = 120


def check_tokenizer(files: Mapping[str, bytes], source: str = "tokenizer.json") -> None:
    """Open and use ``tokenizer.json`` in a child process with limits of memory and time. Nothing is done without such a file.

    Args:
        files: the tokenizer's files by name.
        source: how a message names the file.

    Raises:
        CheckpointError: it cannot be used.

    """
    content = files.get("tokenizer.json")
    if content is None:
        return
    if len(content) > LARGEST_FILE:
        raise CheckpointError(f"{source}: {format_bytes(len(content))}, at most {format_bytes(LARGEST_FILE)} are read")
    program = Path(tokenizer_child.__file__)
    try:
        done = subprocess.run(  # noqa: S603  # this interpreter, a file of ours
            [sys.executable, "-I", "-S", str(program), json.dumps([sys.path, str(program.parents[1])])],
            input=content,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
            env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(f"{source}: the tokenizer does not end within {_SECONDS} s") from error
    except OSError as error:
        raise CheckpointError(f"{source}: the process that tries it cannot be started ({error.strerror})") from error
    if done.returncode != 0:
        raise CheckpointError(
            f"{source}: the tokenizer takes more memory or time than it may, or ends the process; is it damaged?"
        )
    if wrong := done.stdout.decode("utf-8", "replace").strip():
        raise CheckpointError(f"{source}: the tokenizer cannot be used ({wrong})")
