"""What is wanted of a position: values that are named before the sweep, so that the head is reduced while its pages pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from estream.errors import PromptError

#: A text, or token ids.
Prompt = str | Sequence[int] | np.ndarray
#: Wanted positions of one prompt, counted from 0; None for the last one alone.
Positions = Sequence[int] | None
#: All positions of a prompt, whatever its length.
ALL: Literal["all"] = "all"


@dataclass(frozen=True)
class Logits:
    """The logits: ``logits`` float32 [positions, vocabulary]."""


@dataclass(frozen=True)
class Likeliest:
    """The ``count`` likeliest next tokens: ``ids`` int32 and ``log_probabilities`` float32 [positions, count], likeliest first,
    equal ones by rising id.
    """

    count: int


@dataclass(frozen=True, eq=False)
class LogProbabilities:
    """``log_probabilities`` float32 [positions, m] of given next tokens, ``ids`` int32 [positions, m]."""

    ids: np.ndarray


@dataclass(frozen=True)
class Among:
    """``logits`` float32 [positions, ids] of some ids, and their ``probabilities`` as if there were no others.

    Of the head only the pages that hold these ids are read.
    """

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Hidden:
    """What the head would multiply: the residual after the final norm, ``hidden`` float32 [positions, hidden]; with ``mean``
    their mean, float32 [hidden]. No head page is read.
    """

    mean: bool = False


Wanted = Logits | Likeliest | LogProbabilities | Among | Hidden


@dataclass(frozen=True)
class Request:
    """One prompt, its positions that matter (:data:`ALL` for every one, None for the last), and what is wanted of them."""

    prompt: Prompt
    positions: Positions | Literal["all"] = None
    wanted: Wanted = Logits()


def check_wanted(wanted: Wanted, positions: int, vocabulary: int, which: str) -> Wanted:
    """What is wanted of so many positions of ``which`` prompt, its ids as arrays of int32.

    Raises:
        PromptError: an id is outside the vocabulary or the number of ids is wrong.

    """
    match wanted:
        case Likeliest(count):
            if not 1 <= count <= vocabulary:
                raise PromptError(f"{which}: the {count} likeliest tokens are wanted, possible are 1 to {vocabulary}")
        case LogProbabilities(ids):
            found = _ids(ids, vocabulary, which)
            if found.ndim != 2 or len(found) != positions or not found.shape[1]:
                raise PromptError(
                    f"{which}: log-probabilities need ids [positions, one or more], here [{positions}, one or more]; found "
                    f"{list(found.shape)}"
                )
            return LogProbabilities(found)
        case Among(ids):
            found = _ids(ids, vocabulary, which)
            if found.ndim != 1 or not found.size or len(np.unique(found)) != found.size:
                raise PromptError(f"{which}: the ids that P is wanted over must be one or more, and differ")
            return Among(tuple(found.tolist()))
    return wanted


def _ids(ids: Sequence[int] | np.ndarray, vocabulary: int, which: str) -> np.ndarray:
    try:
        found = np.asarray(ids)
    except (ValueError, OverflowError, RecursionError) as error:
        raise PromptError(f"{which}: wanted ids must be whole numbers in rows of one length") from error
    if found.size and found.dtype.kind not in "iu":
        raise PromptError(f"{which}: wanted ids must be whole numbers in rows of one length")
    outside = (found < 0) | (found >= vocabulary)
    if outside.any():
        raise PromptError(f"{which}: id {found[outside][0]} is wanted, the vocabulary is 0..{vocabulary - 1}")
    return found.astype(np.int32)
