"""What a conversion did to the weights, in the manifest and on the command line."""

from collections.abc import Iterable, Mapping
from typing import Any

from estream.checkpoint.source import CheckpointSource
from estream.models.config import MlpTensors, ModelTensors
from estream.package.layout import Quantization
from estream.quantization.packing import KindTally
from estream.quantization.rows import code_group


def preferred_group(checkpoint: CheckpointSource, tensors: ModelTensors, bits: int, default: int) -> int:
    """The group in which the experts' codes can be kept where they have some, else the default."""
    refs = tuple(ref for expert in _experts(tensors) for ref in (expert.gate, expert.up))
    group = code_group(checkpoint, refs, bits)
    return default if group is None else min(group, default)


def experts_keep_codes(checkpoint: CheckpointSource, tensors: ModelTensors, quantization: Quantization) -> bool:
    """Whether the experts' codes go into a package of this quantisation as they are."""
    group = code_group(checkpoint, (_experts(tensors)[0].gate,), quantization.expert_bits)
    return group is not None and group % quantization.group == 0


def matrix_notes(checkpoint: CheckpointSource, tensors: ModelTensors, quantization: Quantization) -> Iterable[str]:
    """Where other options would have kept the experts' codes."""
    expert = _experts(tensors)[0]
    codes = checkpoint.codes(expert.gate)
    if codes is None:
        return
    bits, group = codes
    stored = f"experts of {checkpoint.stored_as(expert.gate)} are quantised anew"
    if bits > quantization.expert_bits:
        yield f"{stored} to {quantization.expert_bits} bits; --bits {bits} --group {group} keeps them exactly"
    elif group % quantization.group:
        yield f"{stored} in groups of {quantization.group}; --group {group} keeps them exactly"


def _experts(tensors: ModelTensors) -> tuple[MlpTensors, ...]:
    """Of the first layer that has some: those of the others are stored alike."""
    return next(layer.experts for layer in tensors.layers if layer.experts)


def summarise(tallies: Mapping[tuple[str, str], KindTally], notes: list[str]) -> dict[str, Any]:
    """For the manifest: per kind of matrix and type in the source, how many were kept and what requantising cost."""
    return {
        "weights": [
            {"kind": kind, "stored_as": stored, "kept": t.kept, "requantised": t.requantised, "relative_rms": t.relative_rms}
            for (kind, stored), t in sorted(tallies.items())
        ],
        "notes": notes,
    }


def describe_conversion(summary: Mapping[str, Any], largest: Mapping[str, float]) -> list[str]:
    """Lines for people, from what ``summarise`` gave and the largest error of a layer by kind, where there is one."""
    lines = []
    for entry in summary.get("weights", []):
        kept, anew = entry["kept"], entry["requantised"]
        done = [f"{kept} kept exactly"] if kept else []
        if anew:
            worst = f" ({largest[entry['kind']]:.2%} in the worst layer)" if entry["kind"] in largest else ""
            done.append(f"{anew} quantised, relative RMS error {entry['relative_rms']:.2%}{worst}")
        lines.append(f"{entry['kind']} ({entry['stored_as']}): {'; '.join(done)}")
    return lines + list(summary.get("notes", []))
