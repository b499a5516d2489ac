"""Reading a Hugging Face ``config.json`` strictly: what is not understood is refused by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from estream.errors import CheckpointError


class HfConfig:
    """Typed access to a ``config.json``; every refusal names the key, what was found and what is supported."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def integer(self, *keys: str, default: int | None = None) -> int:
        """The value under any of these spellings, which must agree where several are present."""
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
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"config.json: '{key}' is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"config.json: '{key}' must be a number, found {value!r}")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if value <= 0:
            raise CheckpointError(f"config.json: '{key}' must be a positive number, found {value!r}")
        return value

    def count(self, key: str, default: int = 0) -> int:
        """A whole number that may be zero."""
        value = self.values.get(key)
        return default if value is None else 0 if value == 0 and not isinstance(value, bool) else self.integer(key)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"config.json: '{key}' must be true or false, found {value!r}")
        return value

    def require(self, key: str, supported: object, default: object) -> None:
        """Refuse any value but the one supported."""
        value = self.values.get(key, default)
        if value != supported:
            raise CheckpointError(f"config.json: '{key}' is {value!r}, but only {supported!r} is supported for this family")

    def one_of(self, key: str, supported: Sequence[str], default: str) -> str:
        """Refuse any value but those supported."""
        value = self.values.get(key, default)
        if value not in supported:
            raise CheckpointError(
                f"config.json: '{key}' is {value!r}, but only {', '.join(map(repr, supported))} are supported for this family"
            )
        return str(value)

    def head_dim(self, hidden: int, heads: int) -> int:
        """``head_dim`` where given, else hidden / heads, which must be whole and even."""
        given = self.values.get("head_dim")
        if given is None and hidden % heads:
            raise CheckpointError(f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
        size = self.integer("head_dim", default=hidden // heads)
        if size % 2 or size > 256:
            raise CheckpointError(f"config.json: a head size of {size} is not supported, it must be even and at most 256")
        return size
