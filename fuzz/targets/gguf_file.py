"""A GGUF file: its header is the input, the same bytes of weights follow."""

import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz import fixtures
from fuzz.harness import Run, Target
from fuzz.mutate import ODD, mutate_bytes

_STRING, _ARRAY, _U32, _F32, _BOOL = 8, 9, 4, 6, 7
#: Bytes of a value, by its type.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_F16_KIND, _F32_KIND, _Q8_0_KIND = 1, 0, 8


def _prepare(folder: Path) -> Run:
    file = folder / "model.gguf"
    # Finite as halves, and two of them as one float.
    payload = (np.random.default_rng(0).standard_normal(1 << 16) * 0.1).astype(np.float16).tobytes()

    def run(data: bytes) -> None:
        file.write_bytes(data + bytes(-len(data) % 32) + payload)
        fixtures.convert_and_answer(file, folder / "out.estream")

    return run


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """A value behind its type."""
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value % (1 << 32))
    if isinstance(value, float):
        return struct.pack("<I", _F32) + np.float32(value).tobytes()
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, list):
        items = [_value(item) for item in value]
        kind = items[0][:4] if items else struct.pack("<I", _U32)
        return struct.pack("<I", _ARRAY) + kind + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)
    return struct.pack("<II", _U32, 0)


def header(keys: dict[str, Any], tensors: list[tuple[str, tuple[int, ...], int]]) -> bytes:
    """``tensors``: name, shape with the columns last, type. They lie one after another."""
    text = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, value in keys.items():
        text += _text(key) + _value(value)
    offset = 0
    for name, shape, kind in tensors:
        text += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, offset)
        count = int(np.prod(shape))
        size = {_F32_KIND: 4 * count, _F16_KIND: 2 * count, _Q8_0_KIND: count // 32 * 34}[kind]
        offset += size + -size % 32
    return text


def _fields(data: bytes) -> list[tuple[int, int]]:
    """(begin, bytes) of each number in a header and of each text's length; as far as it can be read."""
    fields, at = [(4, 4), (8, 8), (16, 8)], 24

    def number(size: int) -> int:
        nonlocal at
        fields.append((at, size))
        at += size
        return int.from_bytes(data[at - size : at], "little")

    def text() -> None:
        nonlocal at
        at += number(8)

    def value(kind: int) -> None:
        if kind == _STRING:
            text()
        elif kind == _ARRAY:
            item = number(4)
            for _ in range(min(number(8), 200)):
                value(item)
        else:
            number(_SIZES.get(kind, 1))

    tensors, keys = (int.from_bytes(data[i : i + 8], "little") for i in (8, 16))
    for _ in range(min(keys, 100)):
        text()
        value(number(4))
    for _ in range(min(tensors, 100)):
        text()
        for _ in range(min(number(4), 8)):
            number(8)
        number(4)
        number(8)
    return [field for field in fields if sum(field) <= len(data)]


_NUMBERS = [v for v in ODD if isinstance(v, int) and 0 <= v < 1 << 64]


def _mutate(data: bytes, rng: Random) -> bytes:
    if len(data) < 24 or rng.random() < 0.25:
        return mutate_bytes(data, rng)
    text, fields = bytearray(data), _fields(data)
    for _ in range(rng.choice((1, 1, 2))):
        at, size = rng.choice(fields)
        now = int.from_bytes(text[at : at + size], "little")
        near = (now + 1, now - 1, now * 2, now ^ (1 << rng.randrange(8 * size)), rng.randrange(14))
        new = rng.choice((rng.choice(_NUMBERS), *near))
        if size == 4 and rng.random() < 0.1:
            text[at : at + 4] = np.float32(rng.choice((np.nan, np.inf, -1.0, 0.0, 1e-40, 3e38))).tobytes()
        else:
            text[at : at + size] = (new % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(text)


def _tensors(kind: int) -> list[tuple[str, tuple[int, ...], int]]:
    hidden, width, experts = fixtures.HIDDEN, fixtures.WIDTH, 2
    matrices = {f"attn_{part}": (hidden, hidden) for part in ("q", "k", "v", "output")}
    matrices |= {f"ffn_{part}_exps": (experts, width, hidden) for part in ("gate", "up")}
    matrices["ffn_down_exps"] = (experts, hidden, width)
    vectors = ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm")
    return [
        ("token_embd.weight", (fixtures.VOCABULARY, hidden), kind),
        ("output_norm.weight", (hidden,), _F32_KIND),
        *((f"blk.0.{name}.weight", shape, kind) for name, shape in matrices.items()),
        *((f"blk.0.{name}.weight", (hidden,), _F32_KIND) for name in vectors),
        ("blk.0.ffn_gate_inp.weight", (experts, hidden), _F32_KIND),
    ]


def _keys(**more: Any) -> dict[str, Any]:
    sizes = {
        "block_count": 1,
        "context_length": 128,
        "embedding_length": fixtures.HIDDEN,
        "feed_forward_length": fixtures.WIDTH,
    }
    heads = {"attention.head_count": 2, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5}
    experts = {"rope.freq_base": 1e4, "expert_count": 2, "expert_used_count": 1, "vocab_size": fixtures.VOCABULARY}
    given = {f"olmoe.{key}": value for key, value in (sizes | heads | experts).items()}
    return {"general.architecture": "olmoe", **given, **more}


def _vocabulary(model: str, **more: Any) -> dict[str, Any]:
    tokens = list(fixtures.tokenizer()["model"]["vocab"])
    keys = {"model": model, "tokens": tokens, "token_type": [3, *[1] * 63], "bos_token_id": 0, "eos_token_id": 0, **more}
    return {f"tokenizer.{key if key == 'chat_template' else f'ggml.{key}'}": value for key, value in keys.items()}


def _seeds() -> dict[str, bytes]:
    merges = ["h e", "l l", "he ll", "hell o"]
    bpe = _vocabulary("gpt2", merges=merges, pre="olmo", add_bos_token=False, chat_template=fixtures.TEMPLATE)
    pieces = _vocabulary("llama", scores=[-float(i) for i in range(64)], unknown_token_id=0, add_bos_token=True)
    plain = {"tokenizer.ggml.model": "no_vocab"}
    return {
        "ids.gguf": header(_keys(**plain), _tensors(_F32_KIND)),
        "bpe.gguf": header(_keys(**bpe), _tensors(_F32_KIND)),
        "pieces.gguf": header(_keys(**pieces), _tensors(_F32_KIND)),
        "halves.gguf": header(_keys(**plain), _tensors(_F16_KIND)),
    }


TARGET = Target("gguf_file", ".gguf", _prepare, _mutate, _seeds)
