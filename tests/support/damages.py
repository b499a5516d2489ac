"""Ways to damage a checkpoint: each changes a folder in place."""

import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layouts
import torch
from safetensors.torch import load_file, save_file

from estream.checkpoint.shards import INDEX

UP = "model.layers.1.mlp.experts.3.up_proj.weight"
NORM = "model.norm.weight"
Q = "model.layers.0.self_attn.q_proj."
FILE = "model.safetensors"
Damage = Callable[[Path], None]


def edit(change: Callable[[layouts.Tensors], Any]) -> Damage:
    def damage(source: Path) -> None:
        tensors = load_file(source / FILE)
        change(tensors)
        save_file({name: value.contiguous() for name, value in tensors.items()}, source / FILE, {"format": "pt"})

    return damage


def put(name: str, value: torch.Tensor | Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    return edit(lambda t: t.update({name: value(t[name]) if callable(value) else value}))


def drop(name: str) -> Damage:
    return edit(lambda t: t.pop(name))


def poke(name: str, value: float, at: int = 5) -> Damage:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.float().clone()
        copy.view(-1)[at] = value
        return copy.to(tensor.dtype)

    return put(name, change)


def config(**values: Any) -> Damage:
    def damage(source: Path) -> None:
        known = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(known | values))

    return damage


def quantization(**values: Any) -> Damage:
    def damage(source: Path) -> None:
        known = json.loads((source / "config.json").read_text())["quantization_config"]
        config(quantization_config=known | values)(source)

    return damage


def header(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Change the header of a safetensors file and nothing else."""

    def damage(source: Path) -> None:
        raw = (source / FILE).read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        values = json.loads(raw[8 : 8 + length])
        change(values)
        text = json.dumps(values).encode()
        (source / FILE).write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])

    return damage


def raw(change: Callable[[bytes], bytes]) -> Damage:
    return lambda source: (source / FILE).write_bytes(change((source / FILE).read_bytes())) and None


def index(change: Callable[[dict[str, str]], Any]) -> Damage:
    def damage(source: Path) -> None:
        values = json.loads((source / INDEX).read_text())
        change(values["weight_map"])
        (source / INDEX).write_text(json.dumps(values))

    return damage


def shard(number: int) -> str:
    return f"model-{number:05}-of-"


def change_shard(change: Callable[[list[Path]], Any]) -> Damage:
    return lambda source: change(sorted(source.glob("*.safetensors"))) and None


def config_text(change: Callable[[str], str]) -> Damage:
    return lambda s: (s / "config.json").write_text(change((s / "config.json").read_text())) and None


def eps(value: str) -> Callable[[str], str]:
    return lambda text: re.sub('"rms_norm_eps": [^,]+', f'"rms_norm_eps": {value}', text)


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels else []


def pipe(name: str) -> Damage:
    def damage(source: Path) -> None:
        (source / name).unlink(missing_ok=True)
        os.mkfifo(source / name)

    return damage


def device(name: str) -> Damage:
    def damage(source: Path) -> None:
        (source / name).unlink(missing_ok=True)
        (source / name).symlink_to("/dev/zero")

    return damage


def elsewhere(name: str) -> Damage:
    return index(lambda m: m.update({NORM: name}))


def with_header(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def many_metadata(_: bytes) -> bytes:
    return with_header('{"__metadata__": {' + "".join(f'"k{i}": "", ' for i in range(100_000)) + '"k0": ""}}')


def many_empty(_: bytes) -> bytes:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    names = [f"model.layers.{layer}.eh_proj.weight" for layer in range(3, 30_000)] + [f"x.{i}" for i in range(30_000)]
    return with_header(json.dumps(dict.fromkeys(names, entry)))


def same_offsets(values: dict[str, Any]) -> None:
    values[UP]["data_offsets"] = values[UP.replace("3.up", "2.up")]["data_offsets"]


def listed_twice(data: bytes) -> bytes:
    """The same name twice in one header, which JSON readers take for one."""
    (length,) = struct.unpack("<Q", data[:8])
    entry = json.dumps({NORM: json.loads(data[8 : 8 + length])[NORM]})[1:-1].encode()
    text = b"{" + entry + b"," + data[9 : 8 + length]
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def mixed(tensors: layouts.Tensors) -> None:
    """One fused layer that has its single experts too."""
    tensors["model.layers.1.mlp.experts.3.up_proj.weight"] = tensors["model.layers.1.mlp.experts.gate_up_proj"][3, 32:].clone()


NAN, INF = float("nan"), float("inf")
#: By name: the layout, the damage, and what the error says.
