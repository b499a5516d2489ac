"""Strict reading of a Hugging Face ``config.json``: a value that is not understood is an error that names its key."""

from collections.abc import Mapping, Sequence
from typing import Any

from estream.errors import CheckpointError


class HfConfig:
    """Typed access to a ``config.json``.

    Every method raises CheckpointError, which names the key, the value found and the values supported.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def integer(self, *keys: str, default: int | None = None) -> int:
        """Return a positive whole number. ``keys`` are spellings of one setting; all that are present must agree."""
        found = {key: self.values[key] for key in keys if self.values.get(key) is not None}
        for key, value in found.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise CheckpointError(f"config.json: '{key}' must be a positive whole number, found {value!r}")
        if len(set(found.values())) > 1:
            raise CheckpointError(f"config.json: {' and '.join(f'{key!r} is {value}' for key, value in found.items())}")
        if found:
            return int(next(iter(found.values())))
        if default is None:
            raise CheckpointError(f"config.json: '{keys[0]}' is missing")
        return default

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number of either sign. The key must be present if ``default`` is None."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"config.json: '{key}' is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"config.json: '{key}' must be a number, found {value!r}")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a number above zero. The key must be present if ``default`` is None."""
        value = self.number(key, default)
        if value <= 0:
            raise CheckpointError(f"config.json: '{key}' must be a positive number, found {value!r}")
        return value

    def count(self, key: str, default: int = 0) -> int:
        """Return a whole number that may be zero."""
        value = self.values.get(key)
        return default if value is None else 0 if value == 0 and not isinstance(value, bool) else self.integer(key)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"config.json: '{key}' must be true or false, found {value!r}")
        return value

    def require(self, key: str, supported: object, default: object) -> None:
        """Refuse any value but ``supported``; ``default`` stands in where the key is absent."""
        value = self.values.get(key, default)
        if value != supported:
            raise CheckpointError(f"config.json: '{key}' is {value!r}, but only {supported!r} is supported for this family")

    def one_of(self, key: str, supported: Sequence[str], default: str) -> str:
        """Return one of the ``supported`` values; refuse any other."""
        value = self.values.get(key, default)
        if value not in supported:
            raise CheckpointError(
                f"config.json: '{key}' is {value!r}, but only {', '.join(map(repr, supported))} are supported for this family"
            )
        return str(value)

    def head_dim(self, hidden: int, heads: int) -> int:
        """Return ``head_dim``, or ``hidden`` / ``heads`` where it is absent. It must be even and at most 256."""
        if self.values.get("head_dim") is None and hidden % heads:
            raise CheckpointError(f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
        head_dim = self.integer("head_dim", default=hidden // heads)
        if head_dim % 2 or head_dim > 256:
            raise CheckpointError(f"config.json: a head size of {head_dim} is not supported, it must be even and at most 256")
        return head_dim
