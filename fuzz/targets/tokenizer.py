"""The files of a tokenizer, in a package and in a checkpoint.

An input is JSON: the files by name, a text to encode, and the door through which it all comes. A file is JSON too, or a text.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

import estream
from estream.conversion.convert import ConvertOptions, convert
from fuzz import fixtures
from fuzz.harness import Run, Target
from fuzz.mutate import mutate_json

_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def _parts(data: bytes) -> tuple[dict[str, bytes], str, bool]:
    """The files, the text, and whether they come with a checkpoint."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or not isinstance(given.get("files"), dict):
        return {"tokenizer.json": data}, "hello", False
    files = {}
    for name in _FILES:
        if name in given["files"]:
            value = given["files"][name]
            files[name] = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else json.dumps(value).encode()
    text = given.get("text")
    return files, text if isinstance(text, str) else "hello", given.get("door") == "checkpoint"


def _use(package: Path, text: str) -> None:
    with estream.load(package, memory=fixtures.MEMORY, threads=1) as model:
        result = model.prefill(text)
        model.top(result, 64)
        model.encode_chat([{"role": "user", "content": text}])


def _prepare(folder: Path) -> Run:
    package = fixtures.make_package(folder / "package")
    manifest = fixtures.manifest_of(package)
    source = fixtures.make_checkpoint(folder / "source")

    def run(data: bytes) -> None:
        files, text, through_checkpoint = _parts(data)
        for name in _FILES:
            (source / name).unlink(missing_ok=True)
        if through_checkpoint:
            for name, content in files.items():
                (source / name).write_bytes(content)
            _use(convert(source, folder / "out.estream", ConvertOptions(force=True)).path, text)
        else:
            fixtures.put_file(package, manifest, files)
            _use(package, text)

    return run


def _mutate(data: bytes, rng: Random) -> bytes:
    return mutate_json(data, rng)


def _others() -> dict[str, Any]:
    """Parts of tokenizers that the plain one has not."""
    words = {"type": "WordLevel", "vocab": {"<s>": 0, "hello": 1, "a": 2}, "unk_token": "<s>"}
    pieces = {"type": "Unigram", "unk_id": 0, "vocab": [["<s>", 0.0], ["\u2581", -1.0], ["h", -2.0]], "byte_fallback": False}
    special = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    post = {
        "type": "TemplateProcessing",
        "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    normal = {
        "type": "Sequence",
        "normalizers": [{"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": " +"}, "content": "_"}],
    }
    charsmap = {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}
    split = {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s"}, "behavior": "Isolated", "invert": False}
    return {
        "words": {"model": words, "pre_tokenizer": {"type": "Whitespace"}, "decoder": None},
        "pieces": {"model": pieces, "normalizer": normal, "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581"}},
        "charsmap": {"model": pieces, "normalizer": charsmap},
        "post": {"post_processor": post, "pre_tokenizer": split, "normalizer": {"type": "Prepend", "prepend": "_"}},
        "padded": {"padding": {"strategy": {"Fixed": 9}, "direction": "Left", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}},
    }


def _seeds() -> dict[str, bytes]:
    plain, config = fixtures.tokenizer(), fixtures.TOKENIZER_CONFIG
    seeds = {}
    for name, change in {"plain": {}, **_others()}.items():
        files = {"tokenizer.json": plain | change, "tokenizer_config.json": config}
        door = "checkpoint" if name in ("plain", "post") else "package"
        seeds[f"{name}.json"] = json.dumps({"door": door, "text": "hello, a b", "files": files}).encode()
    return seeds


TARGET = Target("tokenizer", ".json", _prepare, _mutate, _seeds)
