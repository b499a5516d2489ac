"""Gives the tensors of a GGUF model their Hugging Face names."""

import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from estream.checkpoint.gguf.architectures import MODEL_NAMES, Architecture
from estream.checkpoint.gguf.reader import GgufTensor
from estream.checkpoint.gguf.views import Piece, View
from estream.errors import CheckpointError
from estream.models.decoder import EXPERT_COUNTS

_LAYER = re.compile(r"blk\.(?P<layer>\d+)\.(?P<rest>.+)")
#: Files from before April 2024 have one tensor per expert.
_SINGLE_EXPERT = re.compile(r"(?P<part>ffn_(?:gate|up|down))\.(?P<expert>\d+)\.weight")


def views_by_name(
    architecture: Architecture, config: Mapping[str, Any], stored: Mapping[str, GgufTensor]
) -> tuple[dict[str, View], list[str]]:
    """Return views by Hugging Face name, and the names of the tensors of multi-token prediction, which have no view.

    A tensor that the architecture does not know keeps its GGUF name; ``check_tensors`` then refuses it.
    """
    views: dict[str, View] = {}
    joined: dict[str, list[tuple[str, GgufTensor]]] = {}
    dropped: list[str] = []
    for name, tensor in stored.items():
        match = _LAYER.fullmatch(name)
        if name in architecture.settings:
            continue
        if match and int(match["layer"]) >= int(config["num_hidden_layers"]):
            dropped.append(name)
            continue
        target = _target(architecture, name, match)
        if "{e}" in target and target != name:
            views |= _experts(target, tensor, config)
        else:
            joined.setdefault(target, []).append((match["rest"] if match else name, tensor))
    for target, parts in joined.items():
        if architecture.transposed_experts and "_exps." in parts[0][0]:
            views[target] = _transposed_experts(_in_order(architecture, parts))
        elif len(parts) > 1:
            views[target] = _join(architecture, _in_order(architecture, parts))
        else:
            views[target] = _single(architecture, config, *parts[0])
    return {name: architecture.undo(config, _without_layer(name), view) for name, view in views.items()}, dropped


def _without_layer(name: str) -> str:
    return re.sub(r"model\.layers\.\d+\.", "", name)


def _target(architecture: Architecture, name: str, match: re.Match[str] | None) -> str:
    """The Hugging Face name, with ``{e}`` where the tensor holds all experts."""
    if match is None:
        stem, dot, suffix = name.rpartition(".")
        return MODEL_NAMES[stem] + dot + suffix if stem in MODEL_NAMES else name
    prefix, rest = f"model.layers.{match['layer']}.", match["rest"]
    if rest in architecture.full_names:
        return prefix + architecture.full_names[rest]
    single = _SINGLE_EXPERT.fullmatch(rest)
    if single and "{e}" in architecture.names.get(f"{single['part']}_exps", ""):
        return prefix + architecture.names[f"{single['part']}_exps"].format(e=single["expert"]) + ".weight"
    stem, dot, suffix = rest.rpartition(".")
    return prefix + architecture.names[stem] + dot + suffix if stem in architecture.names else name


def _experts(target: str, tensor: GgufTensor, config: Mapping[str, Any]) -> dict[str, View]:
    """Cut a tensor into experts: matrices [experts, rows, columns], or biases [experts, rows]."""
    if len(tensor.shape) < 2:
        raise CheckpointError(f"{tensor.file}: tensor '{tensor.name}' is {tensor.shape}, expected one part per expert")
    experts, rest = tensor.shape[0], tensor.shape[1:]
    expected = next(config[key] for key in EXPERT_COUNTS if key in config)
    # Compared before they are listed.
    if experts != expected:
        raise CheckpointError(f"{tensor.file}: tensor '{tensor.name}' is {tensor.shape}, expected {expected} experts")
    rows = math.prod(tensor.shape[:-1]) // experts
    return {target.format(e=e): View(rest, (Piece(tensor, e * rows, rows),)) for e in range(experts)}


def _single(architecture: Architecture, config: Mapping[str, Any], rest: str, tensor: GgufTensor) -> View:
    heads = _permuted_heads(architecture, config, rest)
    if heads and (len(tensor.shape) != 2 or tensor.rows % (2 * heads)):
        raise CheckpointError(
            f"{tensor.file}: tensor '{tensor.name}' is {tensor.shape}, expected rows for {heads} heads of even size"
        )
    # Qwen2-MoE's gate of the shared expert is [1, hidden] in Hugging Face, a vector in GGUF.
    one_row = rest == "ffn_gate_inp_shexp.weight" and len(tensor.shape) == 1
    return View((1, *tensor.shape) if one_row else tensor.shape, (Piece(tensor, 0, tensor.rows, heads),))


def _in_order(architecture: Architecture, parts: list[tuple[str, GgufTensor]]) -> list[tuple[str, GgufTensor]]:
    """Sort by the architecture's table: gate before up, keys before values."""
    order = architecture.join_order
    return sorted(parts, key=lambda part: order.index(part[0]))


def _join(architecture: Architecture, parts: list[tuple[str, GgufTensor]]) -> View:
    """Concatenate the rows of tensors; of three-dimensional ones for each expert or head."""
    first = parts[0][1]
    units = first.shape[0] if len(first.shape) == 3 else 1
    pieces = tuple(
        Piece(tensor, unit * (tensor.rows // units), tensor.rows // units, transposed=rest in architecture.transposed)
        for unit in range(units)
        for rest, tensor in parts
    )
    same_units = all(len(t.shape) == len(first.shape) and (units == 1 or t.shape[0] == units) for _, t in parts)
    if not same_units or len({piece.columns for piece in pieces}) != 1:
        _refuse(parts)
    rows = sum(piece.rows for piece in pieces)
    flat = len(first.shape) == 2 or architecture.transposed
    return View((rows, pieces[0].columns) if flat else (units, rows // units, pieces[0].columns), pieces)


def _transposed_experts(parts: list[tuple[str, GgufTensor]]) -> View:
    """The experts' matrices or biases of gpt-oss: Hugging Face has [inputs, outputs], and outputs of gate and up alternate."""
    first = parts[0][1]
    if len(first.shape) not in (2, 3) or any(t.shape != first.shape for _, t in parts):
        _refuse(parts)
    experts, matrices = first.shape[0], len(first.shape) == 3
    rows = first.rows // experts
    pieces = tuple(Piece(tensor, e * rows, rows) for e in range(experts) for _, tensor in parts)
    outputs = len(parts) * first.shape[1]
    shape = (experts, first.columns, outputs) if matrices else (experts, outputs)
    return View(shape, pieces, interleave=len(parts), transposed=matrices)


def _refuse(parts: list[tuple[str, GgufTensor]]) -> NoReturn:
    shapes = ", ".join(f"'{t.name}' {t.shape}" for _, t in parts)
    raise CheckpointError(f"{parts[0][1].file}: tensors {shapes} do not fit together")


def _permuted_heads(architecture: Architecture, config: Mapping[str, Any], rest: str) -> int:
    if not architecture.permuted or rest not in ("attn_q.weight", "attn_k.weight"):
        return 0
    return int(config["num_attention_heads" if rest == "attn_q.weight" else "num_key_value_heads"])
