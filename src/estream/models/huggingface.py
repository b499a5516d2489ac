"""Reading a Hugging Face ``config.json`` strictly: what is not understood is refused by name."""

from collections.abc import Mapping
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

    def number(self, key: str) -> float:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"config.json: '{key}' must be a number, found {value!r}")
        return float(value)

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

    def rope_theta(self) -> float:
        """The rotary base, from either spelling; scaled rotary positions are refused."""
        parameters = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        if kind != "default":
            raise CheckpointError(f"config.json: rotary positions of type {kind!r} are not supported for this family")
        value = parameters.get("rope_theta", self.values.get("rope_theta"))
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise CheckpointError(f"config.json: 'rope_theta' must be a positive number, found {value!r}")
        return float(value)

    def head_dim(self, hidden: int, heads: int) -> int:
        """``head_dim`` where given, else hidden / heads, which must be whole and even."""
        given = self.values.get("head_dim")
        if given is None and hidden % heads:
            raise CheckpointError(f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
        size = self.integer("head_dim", default=hidden // heads)
        if size % 2 or size > 256:
            raise CheckpointError(f"config.json: a head size of {size} is not supported, it must be even and at most 256")
        return size
