"""``estream inspect`` and ``estream verify``."""

import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from estream.cli.output import print_json, print_pairs, progress, say
from estream.cli.quantization import summary
from estream.errors import PackageError
from estream.host.sizes import format_bytes
from estream.package.manifest import Manifest
from estream.package.package import Package, open_package
from estream.package.verify import verify
from estream.schema import to_plain

PackagePath = Annotated[Path, typer.Argument(metavar="PKG", help="The package folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def describe(package: Package) -> dict[str, Any]:
    """Describe a package as JSON values."""
    manifest = package.manifest
    pages, sizes, weights, code_bytes = Counter[str](), Counter[str](), 0, 0
    for page in manifest.tape:
        pages[page.spec.kind] += 1
        sizes[page.spec.kind] += page.padded_bytes
        for part in page.spec.layout.parts:
            if part.packed:
                weights += part.weights
                code_bytes += part.bytes
    return {
        "path": str(package.path),
        "family": manifest.config.family,
        "device": manifest.device,
        "synthetic": manifest.synthetic,
        "source": manifest.source,
        "created_by": manifest.created_by,
        "model": to_plain(manifest.config),
        "quantization": to_plain(manifest.quantization),
        "quantized_weights": weights,
        "bits_per_weight": 8 * code_bytes / weights,
        "report": to_plain(manifest.report),
        "expert_order": "id" if manifest.expert_order is None else "use",
        "use_tokens": manifest.use_tokens,
        "pages": {kind: {"count": pages[kind], "bytes": sizes[kind]} for kind in pages},
        "pages_bytes": manifest.pages_bytes,
        "embedding": {"dtype": manifest.embedding_dtype, "bytes": manifest.embedding_bytes},
        "tokenizer": package.tokenizer_path is not None,
        "npu": to_plain(manifest.npu),
        "bytes": package.bytes,
    }


def inspect_command(path: PackagePath, as_json: Json = False) -> None:
    """Show what is in a package; reads only its manifest."""
    package = open_package(path)
    facts = describe(package)
    if as_json:
        print_json(facts)
        return
    quantization, npu = facts["quantization"], package.manifest.npu
    rows = {
        "family": facts["family"] + (" (synthetic, random weights)" if facts["synthetic"] else ""),
        "source": f"{facts['source']['name']} ({facts['source']['kind']}), by {facts['created_by']}",
        "device": facts["device"] + (f", with graphs for {', '.join(npu.contexts) or 'no chip yet'}" if npu else ""),
        **_model_rows(facts["model"]),
        "weights": f"{facts['quantized_weights'] / 1e9:.3g} billion, {facts['bits_per_weight']:.2f} bits each on average",
        "quantization": f"experts {quantization['expert_bits']} bits, attention and head {quantization['dense_bits']} bits, "
        f"groups of {quantization['group']}",
        "error": summary(package.manifest.report) if package.manifest.report else "not measured",
        "expert order": order_of_experts(package.manifest),
        "tokenizer": "yes" if facts["tokenizer"] else "no: prompts must be token ids",
        "pages": ", ".join(f"{v['count']} {k} ({format_bytes(v['bytes'])})" for k, v in facts["pages"].items()),
        "embedding": f"{facts['embedding']['dtype']}, {format_bytes(facts['embedding']['bytes'])}, read by row",
        "size": format_bytes(facts["bytes"]),
    }
    print_pairs(str(path), rows)


def order_of_experts(manifest: Manifest) -> str:
    """In which order a layer's experts lie, and how many tokens have shown their use."""
    order = "by id" if manifest.expert_order is None else "most used first"
    return order + (f", use known from {manifest.use_tokens} tokens" if manifest.use_tokens else "")


def _model_rows(model: dict[str, Any]) -> dict[str, str]:
    attention, moe = model["attention"], model["moe"]
    shared = f", a shared one of width {moe['shared_width']}" if moe["shared_width"] else ""
    experts = f"{moe['experts']} experts of width {moe['width']}, {moe['top_k']} a token{shared}"
    dense = len(model["dense_layers"])
    layers = f"{model['layers'] - dense} x (attention, {experts})"
    heads = f"{attention['heads']} queries, {attention['kv_heads']} keys and values, size {attention['head_dim']}"
    if attention["latent"]:
        heads = f"{attention['heads']} of size {attention['head_dim']}, from {attention['latent']['kv_rank']} latent values"
    if windowed := len(attention["window_layers"]):
        heads += f"; {windowed} layers see {attention['window']} tokens"
    if linear := len(attention["delta_layers"]):
        delta = attention["delta"]
        heads += f"; {linear} layers linear, {delta['value_heads']} states of {delta['key_dim']} x {delta['value_dim']}"
    return {
        "layers": layers + (f", {dense} x (attention, MLP of width {model['dense_width']})" if dense else ""),
        "hidden": f"{model['hidden']}, vocabulary {model['vocabulary']}, context {model['context']}",
        "heads": heads,
    }


def verify_command(path: PackagePath, as_json: Json = False) -> None:
    """Read a whole package and check every checksum."""
    package = open_package(path)
    begin = time.perf_counter()
    with progress("verifying") as update:
        report = verify(package, update)
    seconds = time.perf_counter() - begin
    if as_json:
        print_json(
            {
                "path": str(path),
                "bytes": report.bytes,
                "seconds": seconds,
                "damaged": report.damaged,
                "direct_io": report.direct_io,
            }
        )
    if report.damaged:
        more = f" and {len(report.damaged) - 1} more" if len(report.damaged) > 1 else ""
        raise PackageError(f"{report.damaged[0]}{more}; convert the model again")
    if not as_json:
        say(f"{path}: every checksum is right ({format_bytes(report.bytes)} in {seconds:.1f} s)")
