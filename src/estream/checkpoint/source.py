"""What conversion needs of a checkpoint, whatever format it has."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from estream.errors import CheckpointError
from estream.models.config import TensorRef


class SourceTensor(Protocol):
    """A tensor of a checkpoint under its Hugging Face name."""

    @property
    def file(self) -> Path:
        """For messages."""
        ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class Codes(Protocol):
    """Integers and scales that a source has already chosen: codes int8 [rows, columns] times scales, fp16 bits in uint16
    [rows, columns / group].
    """

    @property
    def codes(self) -> np.ndarray: ...

    @property
    def scales(self) -> np.ndarray: ...


class CheckpointSource(Protocol):
    """A checkpoint in the vocabulary of Hugging Face: its ``config.json`` and its tensor names.

    All tensor methods raise CheckpointError where the file cannot be read or holds what it must not.
    """

    path: Path
    config: dict[str, Any]
    #: What the user should know of this source: what it holds but cannot be taken over, and why.
    notes: list[str]

    @property
    def tensors(self) -> Mapping[str, SourceTensor]: ...

    def check(self, refs: list[TensorRef], ignored: frozenset[str]) -> None:
        """Refuse a checkpoint that does not hold exactly these tensors, in a shape and type that can be read."""
        ...

    def dtype(self, ref: TensorRef) -> str:
        """What ``read_rows`` gives: "float32", "float16" or "bfloat16"."""
        ...

    def stored_as(self, ref: TensorRef) -> str:
        """The type in the file, by its name there."""
        ...

    def read_rows(self, ref: TensorRef, first: int = 0, count: int | None = None) -> np.ndarray:
        """Rows [first, first + count) as [count, columns]; bfloat16 and float16 as their bits in uint16. A vector is one
        row. For a fused tensor, rows are counted within the part that ``ref`` names.
        """
        ...

    def read_float32(self, ref: TensorRef) -> np.ndarray:
        """A small tensor in float32, in its own shape, all of it finite, plus what ``ref`` says is added."""
        ...

    def codes(self, ref: TensorRef) -> tuple[int, int] | None:
        """Bits of a tensor's codes and inputs that share a scale; None where its values are not codes times fp16 scales."""
        ...

    def read_codes(self, ref: TensorRef, first: int = 0, count: int | None = None) -> Codes | None:
        """The codes of rows [first, first + count), for a tensor that has them; None where some of these do not fit a
        package: a code beyond -8..7 or -127..127, or a scale that fp16 does not hold.
        """
        ...

    def fingerprint(self) -> dict[str, Any]:
        """What identifies this source later."""
        ...

    def extras(self) -> Iterator[tuple[str, bytes]]:
        """Names and contents of the small files that go into the package as they are: tokenizer, chat template."""
        ...


def check_tensors(path: Path, tensors: Mapping[str, SourceTensor], refs: Iterable[TensorRef], ignored: frozenset[str]) -> None:
    """Refuse a checkpoint that does not hold exactly these tensors.

    Raises:
        CheckpointError: names the first tensor that is missing, misshapen or left over.

    """
    wanted = {ref.name: ref for ref in refs}
    for name, ref in wanted.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{path}: tensor '{name}' is missing; is a shard absent, or another model's?")
        if tensor.shape != ref.shape:
            raise CheckpointError(f"{tensor.file.name}: tensor '{name}' is {tensor.shape}, expected {ref.shape}")
    left = sorted(set(tensors) - set(wanted) - ignored)
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise CheckpointError(
            f"{tensors[left[0]].file.name}: tensor '{left[0]}'{more} is not part of this architecture as estream "
            "knows it; converting without it would answer wrongly"
        )
