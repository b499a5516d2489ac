"""Typed access to a GGUF file's metadata. A key that is never read is an error, since it may change the result."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from estream.errors import CheckpointError
from estream.schema import shown

_LARGEST_FLOAT = float(np.finfo(np.float32).max)
#: Keys that do not change the result, in any architecture.
_WITHOUT_EFFECT = frozenset({"vocab_size", "rope.scaling.finetuned"})


class Keys:
    """The keys of the file's architecture, without their prefix ``ARCHITECTURE.``, such as "attention.head_count".

    Every method raises CheckpointError, which names file and key.
    """

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self._metadata = metadata
        self._asked: set[str] = set()
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise CheckpointError(f"{path}: 'general.architecture' is missing or not text, expected the architecture's name")
        self.architecture = architecture

    def refuse(self, key: str, problem: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: '{self.architecture}.{key}' {problem}")

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self._metadata

    def _get(self, key: str) -> Any:
        """Return the value, or None where absent. An array with the same number for every layer counts as that number."""
        self._asked.add(key)
        value = self._metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, np.ndarray):
            if len(value) == 0 or (value != value[0]).any():
                self.refuse(key, "differs between layers, which is not supported")
            value = value[0].item()
        return value

    def integer(self, key: str, default: int | None = None, least: int = 1, most: int | None = None) -> int:
        """Return a whole number in ``least``..``most``. ``most`` bounds counts by the tensors, against damaged files."""
        value = self._get(key)
        if value is None:
            if default is None:
                self.refuse(key, "is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.refuse(key, f"must be a whole number of at least {least}, found {shown(value)}")
        if most is not None and value > most:
            self.refuse(key, f"is {value}, but the file's tensors have room for at most {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number: the shortest decimal that rounds to the stored float32, as ``config.json`` has it."""
        value = self._get(key)
        if value is None:
            if default is None:
                self.refuse(key, "is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST_FLOAT:
            self.refuse(key, f"must be a finite number that float32 holds, found {shown(value)}")
        return float(str(np.float32(value)))

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, f"must be true or false, found {shown(value)}")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.refuse(key, f"must be text, found {shown(value)}")
        return value

    def flags(self, key: str) -> list[bool] | None:
        """Return an array of true and false, one per layer; None where absent."""
        self._asked.add(key)
        values = self._metadata.get(f"{self.architecture}.{key}")
        if values is not None and (not isinstance(values, np.ndarray) or values.dtype != np.bool_):
            self.refuse(key, f"must be true or false for each layer, found {shown(values)}")
        return None if values is None else values.tolist()

    def without_effect(self, key: str) -> None:
        """Accept a key that does not change the result in this architecture."""
        self._asked.add(key)

    def require(self, key: str, *supported: object) -> None:
        """Refuse any value but ``supported``. The key may be absent."""
        value = self._get(key)
        if value is not None and value not in supported:
            self.refuse(key, f"is {shown(value)}, but only {' or '.join(map(repr, supported))} is supported")

    def refuse_unread(self) -> None:
        """Refuse the file if it has a key of the architecture that no method has read."""
        prefix = f"{self.architecture}."
        names = {key.removeprefix(prefix) for key in self._metadata if key.startswith(prefix)}
        unread = sorted(names - self._asked - _WITHOUT_EFFECT)
        if unread:
            self.refuse(unread[0], "is not known for this architecture; converting without it could answer wrongly")
