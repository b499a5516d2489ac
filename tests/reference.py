"""References of another shape than the product: NumPy and torch, straight from the definitions."""

from pathlib import Path

import numpy as np

from estream.models.config import ModelConfig
from estream.package.layout import FloatPart, MatrixPart
from estream.package.manifest import Page
from estream.package.package import Package


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

    def expert(self, layer: int, expert: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """gate, up [width, hidden] and down [hidden, width] of one expert, slices put together."""
        width = self.config.moe.width
        gates, ups, downs = [], [], []
        for page in self.page("expert", layer, expert):
            rows = self.matrix(page, "gate_up").reshape(-1, 2, 16, self.config.hidden)
            count = page.spec.count
            gates.append(rows[:, 0].reshape(-1, self.config.hidden)[:count])
            ups.append(rows[:, 1].reshape(-1, self.config.hidden)[:count])
            downs.append(self.matrix(page, "down"))
        gate, up, down = np.concatenate(gates), np.concatenate(ups), np.concatenate(downs, axis=1)
        assert gate.shape == up.shape == (width, self.config.hidden)
        return gate, up, down

    def head(self) -> np.ndarray:
        return np.concatenate([self.matrix(p, "head") for p in self.pages if p.spec.kind == "head"])


def state_dict(
    package: Package, original: dict[str, np.ndarray], router_name: str, expert_names: tuple[str, str, str]
) -> dict[str, np.ndarray]:
    """A Hugging Face state dict in which every quantised weight is what the package holds; the head is untied.

    ``original`` gives what is kept exactly: embedding and final norm. Names are below ``model.layers.N.``.
    """
    weights = PackageWeights(package)
    config = weights.config
    result = {name: original[name] for name in ("model.embed_tokens.weight", "model.norm.weight")}
    result["lm_head.weight"] = weights.head()
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        (attention,), (router,) = weights.page("attention", layer), weights.page("router", layer)
        for name in ("q", "k", "v", "o"):
            result[f"{prefix}self_attn.{name}_proj.weight"] = weights.matrix(attention, name)
        if config.attention.qk_norm != "none":
            for name in ("q_norm", "k_norm"):
                result[f"{prefix}self_attn.{name}.weight"] = weights.floats(attention, name)
        result[f"{prefix}input_layernorm.weight"] = weights.floats(attention, "input_norm")
        result[f"{prefix}post_attention_layernorm.weight"] = weights.floats(router, "post_norm")
        result[f"{prefix}{router_name}.weight"] = weights.floats(router, "router").T[: config.moe.experts]
        for e in range(config.moe.experts):
            for name, value in zip(expert_names, weights.expert(layer, e), strict=True):
                result[f"{prefix}{name.format(e=e)}.weight"] = value
    return result


def save_folder(folder: Path, tensors: dict[str, np.ndarray], config: str) -> None:
    """A checkpoint folder of float32 tensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {k: np.ascontiguousarray(v, np.float32) for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    (folder / "config.json").write_text(config)
