"""Reads the calibration text and cuts it into windows of token ids."""

from pathlib import Path

import numpy as np

from estream.errors import OptionError, PromptError
from estream.models.config import ModelConfig
from estream.text.tokenizer import TextTokenizer

#: Tokens per window; the model reads each window as one prompt.
WINDOW = 512
#: More tokens cost memory and time and hardly improve the codes (docs/experiments.md).
MOST_TOKENS = 32768
#: A text must give each expert this many tokens on average.
TOKENS_PER_EXPERT = 256
#: A text must have this many tokens, however few experts there are.
FEWEST_TOKENS = 2048


def calibration_windows(path: Path, checkpoint: Path, config: ModelConfig) -> list[np.ndarray]:
    """Return windows of token ids, int32 [at most WINDOW] each, from a UTF-8 text or an ``.npy`` file of ids.

    Raises:
        OptionError: the file cannot be read, is too short, or holds ids that the model does not have.

    """
    ids = _ids(path) if path.suffix == ".npy" else _encoded(path, checkpoint)
    needed = max(FEWEST_TOKENS, TOKENS_PER_EXPERT * config.moe.experts // config.moe.top_k)
    if len(ids) < needed:
        raise OptionError(f"--calibrate {path}: {len(ids)} tokens are too few, this model needs at least {needed}")
    outside = (ids < 0) | (ids >= config.vocabulary)
    if outside.any():
        raise OptionError(f"--calibrate {path}: id {ids[outside][0]} is outside the vocabulary, 0..{config.vocabulary - 1}")
    ids = ids[:MOST_TOKENS].astype(np.int32)
    window = min(WINDOW, config.context)
    return [ids[first : first + window] for first in range(0, len(ids), window)]


def _encoded(path: Path, checkpoint: Path) -> np.ndarray:
    tokenizer = checkpoint / "tokenizer.json"
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise OptionError(f"--calibrate {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"--calibrate {path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    try:
        return np.array(TextTokenizer(tokenizer if tokenizer.exists() else None, checkpoint).encode(text), np.int64)
    except PromptError as error:
        raise OptionError(
            f"--calibrate {path}: {checkpoint} has no tokenizer.json to encode the text with; "
            "give token ids instead, an .npy file of whole numbers"
        ) from error


def _ids(path: Path) -> np.ndarray:
    try:
        ids = np.load(path, allow_pickle=False)
    except OSError as error:
        raise OptionError(f"--calibrate {path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise OptionError(f"--calibrate {path}: not an .npy file ({error})") from error
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise OptionError(f"--calibrate {path}: expected whole numbers in one dimension, not {ids.dtype} {ids.shape}")
    return np.asarray(ids)
