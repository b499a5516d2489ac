"""Random changes to an input: to its bytes, or to a value inside of JSON."""

import json
from random import Random
from typing import Any

#: Values that are likely to be taken wrongly.
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 15, 16, 17, 255, 256, 4096, 65535, 65536),
    *(10**6, 10**9, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.5, 1e-5, 1e-45, 3.4e38, 3.5e38, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "a", " ", "0", "1", "\0", "a\0b", "\ud800", "\u202e\u0130", "\U0001f600", "$A", "a:b", "%s{}", "x" * 300, "true"),
    *("..", ".", "/", "../outside", "/dev/zero", "/etc/passwd", "a/../../b", "~", "con\nfig", "bytes", "float32", "default"),
    *([], {}, [[]], [1], ["a"], [None], {"": 0}, {"a": {"b": []}}, [0] * 50, ["a"] * 50, {"type": "x"}),
]
_BYTES = [
    *(b"[" * 1500, b"{", b"}", b'"', b"\\", b"\\ud800", b"\0", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b",", b":"),
    *(b"9" * 400, b"1e400", b"-", b"NaN", b"Infinity", b"null", b"[]", b"{}", b"../x", b"/dev/zero", b"\x7f" * 8, b"\xff" * 8),
    *(b"{{", b"}}", b"{%", b"%}", b"<s>", b"__class__", b"\xe2\x80\xae"),
]


def mutate_bytes(data: bytes, rng: Random, most: int = 4) -> bytes:
    """One to ``most`` changes."""
    text = bytearray(data)
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((1, 1, 2, 4, 8, 64)))
        kind = rng.randrange(7)
        if kind == 0 and at < len(text):
            text[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(text):
            text[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0x20, rng.randrange(256)))
        elif kind == 2:
            del text[at:end]
        elif kind == 3:
            text[at:at] = text[at:end] * rng.choice((1, 1, 3, 30))
        elif kind == 4:
            text[at:end] = rng.choice(_BYTES)
        elif kind == 5:
            text[at:at] = rng.choice(_BYTES)
        elif len(text) > 1 and rng.random() < 0.3:
            del text[at:]
    return bytes(text)


def mutate_json(data: bytes, rng: Random) -> bytes:
    """Change one to three values; now and then bytes."""
    try:
        root = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(data, rng)
    if rng.random() < 0.1:
        return mutate_bytes(data, rng)
    box = [root]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _change(box, rng)
    try:
        return json.dumps(box[0]).encode()
    except (ValueError, RecursionError):
        return mutate_bytes(data, rng)


def _places(box: list[Any]) -> list[tuple[Any, Any]]:
    """Every (container, key or index) in a value."""
    places, left = [], [(box, 0)]
    while left and len(places) < 5000:
        container, key = left.pop()
        places.append((container, key))
        value = container[key]
        if isinstance(value, dict):
            left += [(value, name) for name in value]
        elif isinstance(value, list):
            left += [(value, index) for index in range(len(value))]
    return places


def _change(box: list[Any], rng: Random) -> None:
    places = _places(box)
    container, key = rng.choice(places)
    value = container[key]
    kind = rng.randrange(8)
    if kind <= 3:
        container[key] = _neighbour(value, rng) if rng.random() < 0.4 else _copy(rng.choice(ODD))
    elif kind == 4 and container is not box:
        del container[key]
    elif kind == 5:
        other, name = rng.choice(places)
        container[key] = _copy(other[name])
    elif kind == 6 and isinstance(container, dict):
        container[rng.choice((f"{key}x", "", "a\0b", "../x", "/dev/zero", "self", "type", str(key).upper()))] = _copy(value)
    elif isinstance(value, list):
        value.extend(_copy(value) * rng.choice((1, 1, 8)) if value else [_copy(rng.choice(ODD))])
    else:
        container[key] = rng.choice(([value], {"a": value}, str(value)[:500]))


def _neighbour(value: Any, rng: Random) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(
            (
                value + 1,
                value - 1,
                -value,
                value * 2,
                value // 2,
                value << 32,
                value * 10**9,
                value + 0.5 if abs(value) < 2**60 else 0.5,
            )
        )
    if isinstance(value, float):
        return rng.choice((-value, value * 1e10, value * 1e-10, value * 1e300, 1 / value if value else 0.0))
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        odd = rng.choice(["", "\0", "/", "..", "\ud800", "\u0130", "x" * 300, "{{ x }}", value])
        return value[:at] + odd + value[at + rng.randrange(2) :]
    return _copy(rng.choice(ODD))


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))
