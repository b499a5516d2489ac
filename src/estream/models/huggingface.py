"""Strict reading of a Hugging Face ``config.json``: a value that is not understood is an error that names its key."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from estream.errors import CheckpointError
from estream.models.config import LARGEST_HEAD, MOST_LAYERS, MOST_TOKENS
from estream.schema import shown

T = TypeVar("T")
#: The largest size of one dimension, and the largest number that float32 holds (``schema.py``).
_LARGEST_COUNT = 1 << 24
_LARGEST_FLOAT = 3.4e38


class HfConfig:
    """Typed access to a ``config.json``.

    Every method raises CheckpointError, which names the key, the value found and the values supported. ``default`` stands in
    where the key is absent, ``null`` where its value is null; without them an absent key, or a null, is refused. Both are what
    the class of the model has in transformers: a key that is left out must not make another model.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def integer(
        self, *keys: str, default: int | None = None, null: int | None = None, least: int = 1, most: int = _LARGEST_COUNT
    ) -> int:
        """Return a whole number in ``least``..``most``. ``keys`` are spellings of one setting; all that are present must
        agree.
        """
        found = {key: self._integer(key, null, least, most) for key in keys if key in self.values}
        if len(set(found.values())) > 1:
            raise CheckpointError(f"config.json: {' and '.join(f'{key!r} is {value}' for key, value in found.items())}")
        return next(iter(found.values())) if found else self._absent(keys[0], default)

    def count(self, key: str, default: int | None = None, null: int | None = None) -> int:
        """Return a whole number that may be zero."""
        return self.integer(key, default=default, null=null, least=0)

    def number(self, key: str, default: float | None = None, null: float | None = None) -> float:
        """Return a finite number of either sign."""
        if key not in self.values:
            return self._absent(key, default)
        value = self.values[key]
        if value is None and null is not None:
            return null
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(key, "must be a number")
        if not -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT:
            self._refuse(key, "must be a finite number that float32 holds")
        return float(value)

    def not_negative(self, key: str, default: float | None = None, null: float | None = None) -> float:
        """Return a number of at least zero."""
        value = self.number(key, default, null)
        if value < 0:
            self._refuse(key, "must be a number of at least 0")
        return value

    def positive(self, key: str, default: float | None = None, null: float | None = None) -> float:
        """Return a number above zero."""
        value = self.number(key, default, null)
        if value <= 0:
            self._refuse(key, "must be a positive number")
        return value

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Return a list of ``count`` positive numbers."""
        values = self.values.get(key)
        if not isinstance(values, list) or len(values) != count:
            self._refuse(key, f"must be a list of {count} numbers")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST_FLOAT:
                self._refuse(key, "must be a list of positive numbers", value)
        return tuple(map(float, values))

    def layers(self) -> int:
        return self.integer("num_hidden_layers", most=MOST_LAYERS)

    def context(self) -> int:
        return self.integer("max_position_embeddings", most=MOST_TOKENS)

    def window(self) -> int:
        """Return ``sliding_window``. Where it is null or absent it is as long as the context."""
        context = self.context()
        return self.integer("sliding_window", default=context, null=context, most=MOST_TOKENS)

    def layer_list(self, key: str) -> frozenset[int]:
        """Return a list of layers of the model; empty where it is absent or null."""
        layers, found = self.layers(), self.values.get(key)
        if found is None:
            return frozenset()
        if not isinstance(found, list) or not all(type(n) is int and 0 <= n < layers for n in found):
            self._refuse(key, f"must list layers in 0..{layers - 1}")
        return frozenset(found)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            self._refuse(key, "must be true or false")
        return value

    def require(self, key: str, supported: object, default: object) -> None:
        """Refuse any value but ``supported``; ``default`` stands in where the key is absent."""
        value = self.values.get(key, default)
        # 1 and true are equal, and a number so large that it cannot be compared is none of these.
        if type(value) is not type(supported) or value != supported:
            raise CheckpointError(
                f"config.json: '{key}' is {shown(value)}, but only {supported!r} is supported for this family"
            )

    def one_of(self, key: str, supported: Sequence[str], default: str) -> str:
        """Return one of the ``supported`` values; refuse any other."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or value not in supported:
            raise CheckpointError(
                f"config.json: '{key}' is {shown(value)}, but only {', '.join(map(repr, supported))} are supported for this "
                "family"
            )
        return value

    def head_dim(self, hidden: int, heads: int, default: int | None = None, *, nullable: bool = False) -> int:
        """Return ``head_dim``, which must be even and at most 256. Where it is absent and has no ``default``, or null and
        ``nullable``, the heads share ``hidden`` values.
        """
        found = self.values.get("head_dim", default)
        shared = found is None and (nullable or "head_dim" not in self.values)
        if shared and hidden % heads:
            raise CheckpointError(f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
        head_dim = hidden // heads if shared else self.integer("head_dim", default=default)
        if head_dim % 2 or not 2 <= head_dim <= LARGEST_HEAD:
            raise CheckpointError(
                f"config.json: a head size of {head_dim} ('head_dim', else hidden_size / num_attention_heads) is not "
                f"supported, it must be even and at most {LARGEST_HEAD}"
            )
        return head_dim

    def _integer(self, key: str, null: int | None, least: int, most: int) -> int:
        value = self.values[key]
        if value is None and null is not None:
            return null
        what = "a positive whole number" if least == 1 else f"a whole number of at least {least}"
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self._refuse(key, f"must be {what}")
        if value > most:
            self._refuse(key, f"must be at most {most}")
        return value

    def _absent(self, key: str, default: T | None) -> T:
        if default is None:
            raise CheckpointError(f"config.json: '{key}' is missing")
        return default

    def _refuse(self, key: str, problem: str, *found: Any) -> NoReturn:
        value = found[0] if found else self.values.get(key)
        null = "; null stands for nothing here" if value is None and key in self.values else ""
        raise CheckpointError(f"config.json: '{key}' {problem}, found {shown(value)}{null}")
