"""Reads the header of a GGUF file: metadata and the place of each tensor. Format: ggml's ``docs/gguf.md``, versions 2 and 3.

estream has its own reader because that of the ``gguf`` package does not compare lengths, counts and offsets with the file's
size, so it misreads a truncated file. This one checks each of them before it reads or allocates anything.
"""

import math
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from estream.checkpoint.gguf.types import TYPES, UNREAD_TYPES, GgufType
from estream.errors import CheckpointError
from estream.host.regular_file import open_regular
from estream.host.sizes import MiB, format_bytes, round_up

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

#: The largest vocabularies make headers of 10 to 20 MiB.
_LARGEST_HEADER = 512 * MiB
_LONGEST_NAME = 1024
#: Of a string in an array, such as a token or a merge of two.
_LONGEST_ITEM = 4096
_MOST_DIMENSIONS = 4

_STRING, _ARRAY = 8, 9
#: The NumPy type of each scalar value type, by its number in the file.
_SCALARS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4"},
    **{6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"},
}


@dataclass(frozen=True)
class GgufTensor:
    """A tensor in a file: ``offset`` is its first byte. ``shape`` has the columns last; GGUF stores them first."""

    name: str
    file: Path
    type: GgufType
    shape: tuple[int, ...]
    offset: int

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def rows(self) -> int:
        """The product of all dimensions but the last; 1 for a vector."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.columns // self.type.block * self.type.bytes

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class GgufFile:
    """The header of one file: metadata by key, tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read and check a file's header, without tensor data.

    Raises:
        CheckpointError: the file cannot be read, is not GGUF, or is damaged; names the field or tensor.

    """
    try:
        with open_regular(path) as handle:
            return _Parser(path, handle).parse()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


class _Parser:
    def __init__(self, path: Path, handle: BinaryIO) -> None:
        self._path = path
        self._handle = handle
        self._size = path.stat().st_size
        self._position = 0
        #: The field that is being read, for messages.
        self._field = "the header"

    def parse(self) -> GgufFile:
        if self._take(4) != MAGIC:
            self._refuse("does not begin with 'GGUF', so it is not a GGUF file")
        version = int(self._number("<u4"))
        if version not in VERSIONS:
            hint = "; it is big-endian, which is not read" if version & 0xFFFF == 0 else ""
            self._refuse(f"has version {version}, supported are {' and '.join(map(str, VERSIONS))}{hint}")
        tensor_count, key_count = int(self._number("<u8")), int(self._number("<u8"))
        # A tensor's entry has at least 24 bytes besides its name, a key at least 13.
        self._check_count(tensor_count, 24, "tensors")
        self._check_count(key_count, 13, "keys")
        metadata = self._metadata(key_count)
        entries = self._entries(tensor_count)
        return GgufFile(self._path, metadata, self._place(entries, self._alignment(metadata)))

    def _refuse(self, problem: str) -> NoReturn:
        raise CheckpointError(f"{self._path}: {problem}")

    def _take(self, count: int) -> bytes:
        end = self._position + count
        if end > self._size:
            self._refuse(f"{self._field} needs {count} bytes at byte {self._position}, but the file ends at {self._size}")
        if end > _LARGEST_HEADER:
            self._refuse(f"{self._field} ends at byte {end}; a header above {format_bytes(_LARGEST_HEADER)} is not read")
        data = self._handle.read(count)
        if len(data) != count:
            self._refuse(f"ended while {self._field} was read; is it being written?")
        self._position = end
        return data

    def _number(self, kind: str) -> Any:
        dtype = np.dtype(kind)
        return np.frombuffer(self._take(dtype.itemsize), dtype)[0].item()

    def _check_count(self, count: int, item_bytes: int, items: str) -> None:
        if count * item_bytes > self._size - self._position:
            self._refuse(f"claims {count} {items} in {self._field}, more than fit into its {self._size} bytes")

    def _string(self, longest: int | None = None, what: str = "a name") -> str:
        length = int(self._number("<u8"))
        if longest is not None and length > longest:
            self._refuse(f"{self._field} has {what} of {length} bytes, at most {longest} are allowed")
        data = self._take(length)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            self._refuse(f"{self._field} is not valid UTF-8 ({error.reason} at byte {error.start})")

    def _metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for index in range(count):
            self._field = f"key {index}"
            key = self._string(_LONGEST_NAME)
            self._field = f"key '{key}'"
            if key in metadata:
                self._refuse(f"{self._field} is there twice")
            metadata[key] = self._value(int(self._number("<u4")))
        return metadata

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(int(self._number("<u4")), int(self._number("<u8")))
        if kind not in _SCALARS:
            self._refuse(f"{self._field} has the value type {kind}, which is not known")
        return self._number(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[str] | np.ndarray:
        """Strings as a list, numbers as a NumPy array."""
        if kind == _STRING:
            self._check_count(count, 8, "strings")
            return self._strings(count)
        if kind not in _SCALARS:
            self._refuse(f"{self._field} is an array of the value type {kind}, which is not known")
        dtype = np.dtype(_SCALARS[kind])
        self._check_count(count, dtype.itemsize, "values")
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _strings(self, count: int) -> list[str]:
        return [self._string(_LONGEST_ITEM, "a string") for _ in range(count)]

    def _entries(self, count: int) -> dict[str, tuple[tuple[int, ...], GgufType, int]]:
        """Each tensor's shape, type, and offset from the start of the data."""
        entries: dict[str, tuple[tuple[int, ...], GgufType, int]] = {}
        for index in range(count):
            self._field = f"tensor {index}"
            name = self._string(_LONGEST_NAME)
            self._field = f"tensor '{name}'"
            if name in entries:
                self._refuse(f"{self._field} is there twice")
            dimensions = int(self._number("<u4"))
            if not 1 <= dimensions <= _MOST_DIMENSIONS:
                self._refuse(f"{self._field} has {dimensions} dimensions, expected 1 to {_MOST_DIMENSIONS}")
            shape = struct.unpack(f"<{dimensions}Q", self._take(8 * dimensions))[::-1]
            number, offset = int(self._number("<u4")), int(self._number("<u8"))
            entries[name] = (shape, self._type(number), offset)
        return entries

    def _type(self, number: int) -> GgufType:
        kind = TYPES.get(number)
        if kind is None:
            name = UNREAD_TYPES.get(number, f"type {number}")
            self._refuse(
                f"{self._field} is stored as {name}, which is not read; read are {', '.join(t.name for t in TYPES.values())}"
            )
        return kind

    def _alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            self._refuse(f"'general.alignment' is {alignment!r}, expected a power of two")
        return alignment

    def _place(self, entries: dict[str, tuple[tuple[int, ...], GgufType, int]], alignment: int) -> dict[str, GgufTensor]:
        """Check that each tensor lies within the file, is aligned and overlaps no other."""
        begin = round_up(self._position, alignment)
        tensors: dict[str, GgufTensor] = {}
        for name, (shape, kind, offset) in entries.items():
            elements = 1
            for length in shape:
                elements *= length
            if elements == 0:
                self._refuse(f"tensor '{name}' is empty: {shape}")
            if shape[-1] % kind.block:
                self._refuse(f"tensor '{name}' has rows of {shape[-1]} values, but {kind.name} holds blocks of {kind.block}")
            if offset % alignment:
                self._refuse(f"tensor '{name}' begins at byte {offset} of the data, not at a multiple of {alignment}")
            end = begin + offset + elements // kind.block * kind.bytes
            if end > self._size:
                self._refuse(
                    f"tensor '{name}' {shape} of {kind.name} ends at byte {end}, but the file at {self._size}: "
                    "it is truncated or damaged; fetch it again"
                )
            tensors[name] = GgufTensor(name, self._path, kind, shape, begin + offset)
        self._check_overlap(tensors)
        return tensors

    def _check_overlap(self, tensors: dict[str, GgufTensor]) -> None:
        placed = sorted(tensors.values(), key=lambda t: t.offset)
        for before, after in pairwise(placed):
            if before.offset + before.bytes > after.offset:
                self._refuse(f"tensors '{before.name}' and '{after.name}' overlap")
