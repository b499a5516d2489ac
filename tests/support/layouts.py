"""Writing a checkpoint in other layouts: compressed by formulas of their own, value by value, so that readers have a judge."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny import OLMOE_SHAPES

from estream.package.package import Package

Tensors = dict[str, torch.Tensor]

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def load(folder: Path) -> Tensors:
    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def write(source: Path, folder: Path, tensors: Tensors, **config: Any) -> Path:
    """One file with the config of ``source`` and what changes in it."""
    folder.mkdir()
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    values = json.loads((source / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(values))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (source / name).exists():
            shutil.copy(source / name, folder)
    return folder


def is_linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def compress(tensors: Tensors, one: Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]) -> tuple[Tensors, Tensors]:
    """Apply ``one`` to every linear layer: the compressed checkpoint, and the plain one with the values it stands for."""
    packed, plain = {}, {}
    for name, value in tensors.items():
        if is_linear(name):
            parts, plain[name] = one(value.float())
            packed |= {name.removesuffix("weight") + part: data for part, data in parts.items()}
        else:
            packed[name] = plain[name] = value
    return packed, plain


def fp8(block: int = 128, scale_dtype: torch.dtype = torch.float32) -> Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]:
    def one(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, columns = weight.shape
        scales = torch.empty(-(-rows // block), -(-columns // block))
        codes, plain = torch.empty(rows, columns, dtype=torch.float8_e4m3fn), torch.empty(rows, columns)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                at = slice(i * block, (i + 1) * block), slice(j * block, (j + 1) * block)
                scale = weight[at].abs().max() / 448
                if scale_dtype == torch.float8_e8m0fnu:
                    scale = torch.exp2(torch.ceil(torch.log2(scale)))
                scales[i, j] = scale.to(scale_dtype).float()
                codes[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
                plain[at] = codes[at].float() * scales[i, j]
        return {"weight": codes, "weight_scale_inv": scales.to(scale_dtype)}, plain

    return one


def fp8_whole(per_row: bool) -> Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]:
    def one(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        scale = (weight.abs().amax(1, keepdim=True) if per_row else weight.abs().max().reshape(1)) / 448
        codes = (weight / scale).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale": scale}, codes.float() * scale

    return one


def int4_codes(weight: torch.Tensor, group: int, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [outputs, inputs], zeros and fp16 scales [outputs, groups], rounding to nearest as GPTQ starts from."""
    rows, columns = weight.shape
    grouped = weight.reshape(rows, columns // group, group)
    if symmetric:
        scales = (2 * grouped.abs().amax(2) / 15).half()
        zeros = torch.full_like(scales, 8).int()
    else:
        low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
        scales = ((high - low) / 15).half()
        zeros = (-low / scales.float()).round().clamp(1, 15).int()
    codes = (grouped / scales.float()[..., None] + zeros[..., None]).round().clamp(0, 15).int()
    return codes.reshape(rows, columns), zeros, scales


def int4_values(codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    group = codes.shape[1] // scales.shape[1]
    return (codes - zeros.repeat_interleave(group, 1)).double().mul(scales.double().repeat_interleave(group, 1)).float()


def pack_words(codes: torch.Tensor, order: list[int]) -> torch.Tensor:
    """[..., 8 n] codes to [..., n] words; nibble i holds the code order[i] of its eight."""
    eights = codes.reshape(*codes.shape[:-1], -1, 8).long()
    words = sum(eights[..., source] << (4 * nibble) for nibble, source in enumerate(order))
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def gptq(group: int, symmetric: bool, zero_offset: int = 1) -> Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]:
    def one(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        size = weight.shape[1] if group == -1 else group
        codes, zeros, scales = int4_codes(weight, size, symmetric)
        straight = list(range(8))
        parts = {
            "qweight": pack_words(codes, straight).T,
            "qzeros": pack_words((zeros - zero_offset).T, straight),
            "scales": scales.T,
            "g_idx": (torch.arange(weight.shape[1]) // size).int(),
        }
        return parts, int4_values(codes, zeros, scales)

    return one


def awq(group: int) -> Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]:
    def one(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        codes, zeros, scales = int4_codes(weight, group, False)
        parts = {"qweight": pack_words(codes.T, AWQ_ORDER), "qzeros": pack_words(zeros.T, AWQ_ORDER), "scales": scales.T}
        return parts, int4_values(codes, zeros, scales)

    return one


def mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks uint8 [..., groups, 16] and scales uint8 [..., groups] of [..., 32 groups]."""
    grouped = weight.reshape(*weight.shape[:-1], -1, 32)
    exponent = torch.floor(torch.log2(grouped.abs().amax(-1))) - 2
    scaled = grouped / torch.exp2(exponent)[..., None]
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1) | (scaled < 0).long() << 3
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8), (exponent + 127).to(torch.uint8)


def fuse(tensors: Tensors, experts: int) -> Tensors:
    """Experts as transformers 5 holds them: [experts, 2 * width, hidden], gate first; [experts, hidden, width]."""
    result = {name: value for name, value in tensors.items() if ".experts." not in name}
    for prefix in sorted({name.split("experts.")[0] + "experts." for name in tensors if ".experts." in name}):
        gate, up, down = ([tensors[f"{prefix}{e}.{n}_proj.weight"] for e in range(experts)] for n in ("gate", "up", "down"))
        result[f"{prefix}gate_up_proj"] = torch.cat([torch.stack(gate), torch.stack(up)], 1)
        result[f"{prefix}down_proj"] = torch.stack(down)
    return result


SHAPE = OLMOE_SHAPES["8 experts, grouped queries"]


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def data(package: Package) -> tuple[bytes, bytes, bytes]:
    return tuple((package.path / name).read_bytes() for name in ("pages.bin", "embedding.bin", "resident.safetensors"))


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
