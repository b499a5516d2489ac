"""What ``--model_args`` may hold."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from estream.errors import OptionError
from estream.host.sizes import parse_bytes

#: lm-eval gives these to every model. Memory and ``batch_tokens`` decide how many requests a sweep reads, the package on what.
_IGNORED = ("batch_size", "max_batch_size", "device")


@dataclass(frozen=True)
class HarnessOptions:
    """How a package is loaded and how texts become ids.

    Args:
        memory: budget of the whole process, lm-eval's own memory included, such as "1GiB"; None derives it from the machine.
        threads: compute threads; None takes what the machine grants.
        activations: "int8" or "float".
        batch_tokens: the most tokens of requests in a sweep; None as many as memory allows. Results do not depend on it.
        max_length: tokens of the longest window; None the model's context.
        add_bos_token: begin each text with the token that texts begin with (True), add no special token (False), or as the
            tokenizer's own rules say (None).
        prefix_token_id: what an empty context stands for; None the token that texts begin with, else the one they end with.

    """

    memory: str | int | None = None
    threads: int | None = None
    activations: str = "int8"
    batch_tokens: int | None = None
    max_length: int | None = None
    add_bos_token: bool | None = None
    prefix_token_id: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Raises OptionError where an option is not known or has a value that cannot be used."""
        known = [field.name for field in fields(cls)]
        chosen = {name: value for name, value in given.items() if name not in _IGNORED}
        if unknown := [name for name in chosen if name not in known]:
            raise OptionError(f"--model_args: {unknown[0]!r} is not known; known are pretrained, {', '.join(known)}")
        options = cls(**chosen)
        for name in ("threads", "batch_tokens", "max_length"):
            value = getattr(options, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise OptionError(f"--model_args: {name} must be a whole number above 0, not {value!r}")
        if options.add_bos_token not in (None, True, False):
            raise OptionError(f"--model_args: add_bos_token must be True or False, not {options.add_bos_token!r}")
        if options.memory is not None:
            parse_bytes(options.memory)
        return options
