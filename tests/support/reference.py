"""References of another shape than the product: NumPy and torch, straight from the definitions."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from estream.models import family_of
from estream.models.config import ModelConfig, TensorRef
from estream.package.manifest import Page
from estream.package.package import Package
from estream.package.parts import FloatPart, MatrixPart


def unpack(part: MatrixPart, data: np.ndarray) -> np.ndarray:
    """The weights [outputs, source_inputs] of one packed matrix, following docs/package-format.md word for word."""
    blocks = data[part.offset : part.offset + part.bytes].reshape(part.panels, part.groups, part.block_bytes)
    codes, scales = blocks[..., :-64], blocks[..., -64:].copy().view(np.float16).astype(np.float32)
    if part.bits == 8:
        steps = codes.reshape(part.panels, part.groups, part.group // 4, 32, 4)
        values = steps.astype(np.int32) - 128
        values = values.transpose(0, 3, 1, 2, 4).reshape(part.panels * 32, part.groups, part.group)
    else:
        steps = codes.reshape(part.panels, part.groups, part.group // 8, 32, 4)
        both = np.stack([steps & 15, steps >> 4], axis=-2).astype(np.int32) - 8
        values = both.transpose(0, 3, 1, 2, 4, 5).reshape(part.panels * 32, part.groups, part.group)
    weights = values * scales.transpose(0, 2, 1).reshape(part.panels * 32, part.groups, 1)
    return weights.reshape(part.panels * 32, part.inputs)[: part.outputs, : part.source_inputs].astype(np.float32)


class PackageWeights:
    """Dequantised weights of a package, by page."""

    def __init__(self, package: Package) -> None:
        self.config: ModelConfig = package.manifest.config
        self.pages = package.manifest.tape
        self._data = np.fromfile(package.pages_path, np.uint8)

    def page(self, kind: str, layer: int, expert: int = -1) -> list[Page]:
        return [p for p in self.pages if (p.spec.kind, p.spec.layer, p.spec.expert) == (kind, layer, expert)]

    def matrix(self, page: Page, name: str) -> np.ndarray:
        return unpack(page.spec.layout.matrix(name), self._data[page.offset : page.offset + page.bytes])

    def floats(self, page: Page, name: str) -> np.ndarray:
        part = page.spec.layout.floats(name)
        assert isinstance(part, FloatPart)
        begin = page.offset + part.offset
        return self._data[begin : begin + part.bytes].view(np.float32).reshape(part.shape)

    def mlp(self, kind: str, layer: int, expert: int = -1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """gate, up [width, hidden] and down [hidden, width] of one expert or of the MLP of all tokens, slices put together."""
        gates, ups, downs = [], [], []
        for page in self.page(kind, layer, expert):
            rows = self.matrix(page, "gate_up").reshape(-1, 2, 16, self.config.hidden)
            count = page.spec.count
            gates.append(rows[:, 0].reshape(-1, self.config.hidden)[:count])
            ups.append(rows[:, 1].reshape(-1, self.config.hidden)[:count])
            downs.append(self.matrix(page, "down"))
        return np.concatenate(gates), np.concatenate(ups), np.concatenate(downs, axis=1)

    def head(self) -> np.ndarray:
        return np.concatenate([self.matrix(p, "head") for p in self.pages if p.spec.kind == "head"])


def state_dict(package: Package, source: Path) -> dict[str, np.ndarray]:
    """The Hugging Face state dict of a checkpoint in which every quantised weight is what the package holds; the head is
    untied. What is stored as it was (norms, biases, routers, embedding) stays.
    """
    weights = PackageWeights(package)
    result = {name: values.astype(np.float32) for name, values in load_file(source / "model.safetensors").items()}
    original = {name: values.copy() for name, values in result.items()}
    tensors = family_of(json.loads((source / "config.json").read_text())).tensors(weights.config, frozenset(result))
    for index, layer in enumerate(tensors.layers):
        (attention,) = weights.page("attention", index)
        for part in attention.spec.layout.parts:
            if isinstance(part, MatrixPart):
                put(result, layer.parts[part.name], weights.matrix(attention, part.name))
        mlps = [(layer.shared, weights.mlp("shared", index))] if layer.shared else []
        mlps += [(expert, weights.mlp("expert", index, e)) for e, expert in enumerate(layer.experts)]
        for refs, matrices in mlps:
            for ref, matrix in zip((refs.gate, refs.up, refs.down), matrices, strict=True):
                put(result, ref, matrix)
    for name, values in result.items():
        # Whatever went to a wrong place would be far off.
        assert np.abs(values - original[name]).max() < 0.2 * np.abs(original[name]).max(), name
    result["lm_head.weight"] = weights.head()
    return result


def put(state: dict[str, np.ndarray], ref: TensorRef, matrix: np.ndarray) -> None:
    """Write a matrix [outputs, inputs] to the part of a tensor that ``ref`` names."""
    whole = state[ref.name] if ref.expert is None else state[ref.name][ref.expert]
    rows = (whole.T if ref.transposed else whole)[ref.first_row :: ref.step][: ref.all_rows or None]
    rows[list(ref.order) if ref.order else slice(None)] = matrix


def save_folder(folder: Path, tensors: dict[str, np.ndarray], config: str) -> None:
    """A checkpoint folder of float32 tensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {k: np.ascontiguousarray(v, np.float32) for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    (folder / "config.json").write_text(config)
