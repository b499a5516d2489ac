"""Summarises what a conversion did to the weights, for the manifest and the command line."""

from collections.abc import Iterable, Mapping
from typing import Any

from estream.checkpoint.source import CheckpointSource
from estream.models.config import MlpTensors, ModelTensors
from estream.package.layout import Quantization
from estream.quantization.packing import KindTally
from estream.quantization.rows import code_group


def preferred_group(checkpoint: CheckpointSource, tensors: ModelTensors, bits: int, default: int) -> int:
    """Return the largest group up to ``default`` that keeps the experts' codes; ``default`` if they have none."""
    refs = tuple(ref for expert in _experts(tensors) for ref in (expert.gate, expert.up))
    group = code_group(checkpoint, refs, bits)
    return default if group is None else min(group, default)


def experts_keep_codes(checkpoint: CheckpointSource, tensors: ModelTensors, quantization: Quantization) -> bool:
    """Whether a package with this quantisation holds the experts' codes unchanged."""
    group = code_group(checkpoint, (_experts(tensors)[0].gate,), quantization.expert_bits)
    return group is not None and group % quantization.group == 0


def matrix_notes(checkpoint: CheckpointSource, tensors: ModelTensors, quantization: Quantization) -> Iterable[str]:
    """Yield a note if other options would keep the experts' codes unchanged."""
    expert = _experts(tensors)[0]
    code_format = checkpoint.code_format(expert.gate)
    if code_format is None:
        return
    bits, group = code_format
    stored = f"experts of {checkpoint.stored_as(expert.gate)} are quantised anew"
    if bits > quantization.expert_bits:
        yield f"{stored} to {quantization.expert_bits} bits; --bits {bits} --group {group} keeps them exactly"
    elif group % quantization.group:
        yield f"{stored} in groups of {quantization.group}; --group {group} keeps them exactly"


def _experts(tensors: ModelTensors) -> tuple[MlpTensors, ...]:
    """The experts of the first layer with experts; other layers are stored in the same way."""
    return next(layer.experts for layer in tensors.layers if layer.experts)


def summarise(tallies: Mapping[tuple[str, str], KindTally], notes: list[str]) -> dict[str, Any]:
    """Return the manifest's summary: for each kind of matrix and type in the source, the counts and the error."""
    return {
        "weights": [
            {"kind": kind, "stored_as": stored, "kept": t.kept, "requantised": t.requantised, "relative_rms": t.relative_rms}
            for (kind, stored), t in sorted(tallies.items())
        ],
        "notes": notes,
    }


def describe_conversion(summary: Mapping[str, Any], largest: Mapping[str, float]) -> list[str]:
    """Return lines for the terminal from a summary (``summarise``) and the largest error of any layer, by kind of page."""
    lines = []
    for entry in summary.get("weights", []):
        kept, requantised = entry["kept"], entry["requantised"]
        counts = [f"{kept} kept exactly"] if kept else []
        if requantised:
            worst = f" ({largest[entry['kind']]:.2%} in the worst layer)" if entry["kind"] in largest else ""
            counts.append(f"{requantised} quantised, relative RMS error {entry['relative_rms']:.2%}{worst}")
        lines.append(f"{entry['kind']} ({entry['stored_as']}): {'; '.join(counts)}")
    return lines + list(summary.get("notes", []))
