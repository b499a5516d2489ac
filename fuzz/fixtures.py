"""What inputs are put into: a tiny checkpoint with a tokenizer, and the package that is made of it."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import estream
from estream.conversion.convert import ConvertOptions, convert
from estream.models.config import TensorRef
from estream.package.document import checksum_of, seal
from fuzz.harness import FoundError

MEMORY = "1GiB"
VOCABULARY, HIDDEN, WIDTH, LAYERS, EXPERTS = 64, 32, 32, 2, 4
TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"

CONFIG: dict[str, Any] = {
    "architectures": ["OlmoeForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "max_position_embeddings": 128,
    "model_type": "olmoe",
    "norm_topk_prob": False,
    "num_attention_heads": 2,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": VOCABULARY,
}
TOKENIZER_CONFIG = {"add_bos_token": False, "bos_token": "<s>", "eos_token": "<s>", "chat_template": TEMPLATE}


def tokenizer() -> dict[str, Any]:
    """A byte-level BPE of 64 tokens, the first of them special."""
    letters = [*"abcdefghijklmnopqrstuvwxyz", *"ABCDEFGHIJKLMNOPQRSTUVWXY", *".,:;!?", "\u0120", "\u010a"]
    tokens = ["<s>", *letters, "he", "ll", "hell", "hello"]
    special = {"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special | {"normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"]],
        },
    }


def olmoe_shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of CONFIG's model."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in "qkvo"}
        shapes |= {f"{name}.self_attn.{part}_norm.weight": (HIDDEN,) for part in "qk"}
        shapes |= {f"{name}.{part}_layernorm.weight": (HIDDEN,) for part in ("input", "post_attention")}
        shapes[f"{name}.mlp.gate.weight"] = (EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            mlp = f"{name}.mlp.experts.{expert}"
            shapes |= {f"{mlp}.{part}_proj.weight": (WIDTH, HIDDEN) for part in ("gate", "up")}
            shapes[f"{mlp}.down_proj.weight"] = (HIDDEN, WIDTH)
    return shapes


def shapes_of(refs: Iterable[TensorRef]) -> dict[str, tuple[int, ...]]:
    return {ref.name: ref.shape for ref in refs}


def write_weights(path: Path, shapes: dict[str, tuple[int, ...]], seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    save_file({name: (rng.standard_normal(shape) * 0.1).astype(np.float16) for name, shape in shapes.items()}, path)


def make_checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
    write_weights(folder / "model.safetensors", olmoe_shapes())
    return folder


def make_package(folder: Path) -> Path:
    """The package of :func:`make_checkpoint`, whose source is gone."""
    source = make_checkpoint(folder / "whole")
    path = convert(source, folder / "whole.estream").path
    shutil.rmtree(source)
    return path


def manifest_of(package: Path) -> dict[str, Any]:
    """A manifest's values without its seal."""
    values: dict[str, Any] = json.loads((package / "manifest.json").read_bytes())
    values.pop("checksum")
    return values


def put_file(package: Path, manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    """Give a package such files, as anybody can who gives it away."""
    named = {name: f"{checksum_of(data):016x}" for name, data in files.items()}
    for name, data in files.items():
        (package / name).write_bytes(data)
    (package / "manifest.json").write_text(seal(manifest | {"files": manifest["files"] | named}))


def answer(package: Path, text: str | None = None) -> None:
    """Load a package and read a prompt. Raises FoundError for logits that are no numbers."""
    with estream.load(package, memory=MEMORY, threads=1) as model:
        result = model.prefill([1, 2, 3] if text is None else text)
        if not np.isfinite(result.logits).all():
            raise FoundError("logits are not finite: an answer that is none")
        model.top(result, 1)


def convert_and_answer(source: Path, destination: Path) -> None:
    try:
        answer(convert(source, destination, ConvertOptions(force=True)).path)
    finally:
        left = [p for p in destination.parent.iterdir() if p.name.startswith((f".{destination.name}", f"{destination.name}."))]
        shutil.rmtree(destination, ignore_errors=True)
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
    if left:
        raise FoundError(f"partial package left: {left[0].name}")
