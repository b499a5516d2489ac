"""The interface between conversion and the checkpoint formats."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from estream.errors import CheckpointError
from estream.models.config import TensorRef


class SourceTensor(Protocol):
    """A tensor of a checkpoint under its Hugging Face name. ``file`` is for messages."""

    @property
    def file(self) -> Path: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class Codes(Protocol):
    """A quantised source's own codes int8 [rows, columns] and scales, fp16 bits in uint16 [rows, columns / group].

    A value is its code times its scale.
    """

    @property
    def codes(self) -> np.ndarray: ...

    @property
    def scales(self) -> np.ndarray: ...


class CheckpointSource(Protocol):
    """A checkpoint in the vocabulary of Hugging Face: its ``config.json`` and its tensor names.

    All tensor methods raise CheckpointError where a file cannot be read or holds an unsupported value.
    """

    path: Path
    config: dict[str, Any]
    #: Notes for the user: parts of the source that the package will not have, and why.
    notes: list[str]

    @property
    def tensors(self) -> Mapping[str, SourceTensor]: ...

    def in_its_words(self, message: str) -> str:
        """Return a message about ``config.json`` with the names of this checkpoint's own file and keys."""
        ...

    def check(self, refs: list[TensorRef], ignored: frozenset[str]) -> None:
        """Check that the checkpoint holds exactly the tensors of ``refs`` and ``ignored``, in supported shapes and types."""
        ...

    def dtype(self, ref: TensorRef) -> str:
        """Return the type of ``read_rows``: "float32", "float16" or "bfloat16"."""
        ...

    def stored_as(self, ref: TensorRef) -> str:
        """Return the name that the file's format has for the tensor's type."""
        ...

    def read_rows(self, ref: TensorRef, first: int = 0, count: int | None = None) -> np.ndarray:
        """Return rows [first, first + count) as [count, columns]; bfloat16 and float16 as their bits in uint16.

        A vector is one row. For a fused tensor, rows are counted within the part that ``ref`` names.
        """
        ...

    def read_float32(self, ref: TensorRef) -> np.ndarray:
        """Return a small tensor as float32 in its own shape, plus ``ref.added``. Raises CheckpointError unless all finite."""
        ...

    def code_format(self, ref: TensorRef) -> tuple[int, int] | None:
        """Return the bits of a tensor's codes and the inputs per scale; None if its values are not codes times fp16 scales."""
        ...

    def read_codes(self, ref: TensorRef, first: int = 0, count: int | None = None) -> Codes | None:
        """Return the codes of rows [first, first + count) of a tensor that has codes.

        None if a package cannot hold them: a code lies outside -8..7 (4 bits) or -127..127 (8 bits), or a scale outside the
        range of fp16.
        """
        ...

    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies the source, for the manifest (``host/fingerprint.py``)."""
        ...

    def extras(self) -> Iterator[tuple[str, bytes]]:
        """Yield names and contents of the files that the package copies: tokenizer and chat template."""
        ...


def check_tensors(path: Path, tensors: Mapping[str, SourceTensor], refs: Iterable[TensorRef], ignored: frozenset[str]) -> None:
    """Check that a checkpoint holds exactly the tensors of ``refs`` and ``ignored``.

    Raises:
        CheckpointError: names the first tensor that is missing or unknown, or has another shape.

    """
    wanted = {ref.name: ref for ref in refs}
    for name, ref in wanted.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{path}: tensor '{name}' is missing; is a shard absent, or from another model?")
        if tensor.shape != ref.shape:
            raise CheckpointError(f"{tensor.file.name}: tensor '{name}' is {tensor.shape}, expected {ref.shape}")
    left = sorted(set(tensors) - set(wanted) - ignored)
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise CheckpointError(
            f"{tensors[left[0]].file.name}: tensor '{left[0]}'{more} is not part of this architecture as estream "
            "knows it; converting without it would answer wrongly"
        )
