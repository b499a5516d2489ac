"""Packages whose experts lie in another order: the same pages elsewhere in the file."""

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from estream.models.config import ModelConfig
from estream.package.expert_order import ExpertOrder
from estream.package.expert_use import ExpertUse
from estream.package.layout import build_tape
from estream.package.manifest import Manifest, Page, seal
from estream.package.package import Package, open_package


def random_order(config: ModelConfig, seed: int) -> ExpertOrder:
    """One permutation for each layer with experts."""
    rng = np.random.default_rng(seed)
    sparse = (layer not in config.dense_layers for layer in range(config.layers))
    return tuple(tuple(rng.permutation(config.moe.experts).tolist()) if s else () for s in sparse)


def reordered(manifest: Manifest, order: ExpertOrder | None, use: ExpertUse | None = None) -> Manifest:
    """The manifest of the same pages with experts in this order."""
    key = {(p.spec.kind, p.spec.layer, p.spec.expert, p.spec.slice): p for p in manifest.tape}
    pages: list[Page] = []
    end = 0
    for spec in build_tape(manifest.config, manifest.quantization, order):
        page = Page(len(pages), spec, end, key[spec.kind, spec.layer, spec.expert, spec.slice].checksum)
        end += page.padded_bytes
        pages.append(page)
    return dataclasses.replace(manifest, tape=tuple(pages), expert_order=order, use=use)


def reorder(package: Package, order: ExpertOrder | None, to: Path, use: ExpertUse | None = None) -> Package:
    """A copy of a package with experts in this order."""
    copy = shutil.copytree(package.path, to)
    manifest = reordered(package.manifest, order, use)
    pages = page_bytes(package)
    with open(copy / "pages.bin", "wb") as file:
        for page in manifest.tape:
            file.write(pages[str(page.spec)].ljust(page.padded_bytes, b"\0"))
    (copy / "manifest.json").write_text(manifest.to_json())
    return open_package(copy)


def page_bytes(package: Package) -> dict[str, bytes]:
    """The bytes of each page, by what it holds."""
    with open(package.pages_path, "rb") as file:
        found = {}
        for page in package.manifest.tape:
            file.seek(page.offset)
            found[str(page.spec)] = file.read(page.bytes)
    return found


def order_on_tape(package: Package) -> list[tuple[int, ...]]:
    """Ids of each layer's experts as their pages lie."""
    found: list[list[int]] = [[] for _ in range(package.manifest.config.layers)]
    for page in package.manifest.tape:
        if page.spec.kind == "expert" and page.spec.slice <= 0:
            found[page.spec.layer].append(page.spec.expert)
    return [tuple(experts) for experts in found]


def sealed(manifest: Manifest, without: Sequence[str] = (), **changed: Any) -> bytes:
    """A manifest's text with some keys left out or changed."""
    data = json.loads(manifest.to_json())
    return seal({key: value for key, value in (data | changed).items() if key not in (*without, "checksum")}).encode()
