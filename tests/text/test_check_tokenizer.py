"""Tokenizers that would end the process, take all memory, or fail; tried before they are used."""

import base64
import json
import time

import pytest
from paths import DEMO
from text_tokenizers import KINDS

from estream.errors import CheckpointError, PackageError, PromptError
from estream.text import check_tokenizer as module
from estream.text.check_tokenizer import check_tokenizer
from estream.text.open_tokenizer import open_tokenizer
from estream.text.tokenizer import TextTokenizer


def _changed(**parts) -> bytes:
    return json.dumps(json.loads((DEMO / "tokenizer.json").read_bytes()) | parts).encode()


def _map(raw: bytes) -> dict:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


def _replace(pattern: str, content: str) -> dict:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


CHAIN = {"type": "Sequence", "normalizers": [_replace("a", "aa")] * 40}
TWICE = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2,
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {},
}
BAD = {
    "a map that claims 4 GiB": _changed(normalizer=_map(b"\xff" * 4)),
    "a map in a sequence": _changed(normalizer={"type": "Sequence", "normalizers": [_map(b"\xff\xff\xff\x7f" + b"x" * 60)]}),
    "no map": _changed(normalizer={"type": "Precompiled", "precompiled_charsmap": "!"}),
    "doublings": _changed(normalizer=CHAIN),
    "a long replacement": _changed(normalizer=_replace(" ", "x" * 100_000)),
    "no JSON": b"{",
    "no tokenizer": b"[]",
    "nesting": b"[" * 100_000,
    "nothing": b"",
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_tokenizer_is_refused_at_convert_and_at_load(case: str, tmp_path, capfd):
    begin = time.perf_counter()
    with pytest.raises(CheckpointError, match="^tokenizer.json: the tokenizer "):
        check_tokenizer({"tokenizer.json": BAD[case]})
    assert time.perf_counter() - begin < 20
    (tmp_path / "tokenizer.json").write_bytes(BAD[case])
    with pytest.raises(PackageError, match="the tokenizer cannot be used"):
        open_tokenizer(tmp_path / "tokenizer.json")
    assert capfd.readouterr() == ("", "")


def test_what_repeats_the_text_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(_changed(post_processor=TWICE))
    with pytest.raises(CheckpointError, match="its post-processor changes or repeats the text"):
        check_tokenizer({"tokenizer.json": _changed(post_processor=TWICE)})
    with pytest.raises(PackageError, match="its post-processor changes or repeats the text"):
        open_tokenizer(tmp_path / "tokenizer.json")


def test_good_tokenizers_pass(tmp_path):
    check_tokenizer({})
    check_tokenizer({"tokenizer.json": (DEMO / "tokenizer.json").read_bytes()})
    for make in KINDS.values():
        check_tokenizer({"tokenizer.json": make().to_str().encode()})


def test_what_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(module, "_SECONDS", 0.01)
    with pytest.raises(CheckpointError, match="does not end within"):
        check_tokenizer({"tokenizer.json": (DEMO / "tokenizer.json").read_bytes()})


def test_a_panic_while_a_prompt_is_read_is_a_prompt_error(tmp_path):
    """PanicException of the library is a BaseException; an interrupt goes on."""
    ours = TextTokenizer(DEMO / "tokenizer.json", tmp_path)

    class Panic(BaseException):
        pass

    class Failing:
        def __init__(self, error):
            self.error = error

        def encode(self, *given, **named):
            raise self.error

    ours._tokenizer = Failing(Panic("index out\nof bounds"))
    with pytest.raises(PromptError, match="the prompt cannot be tokenized .index out of bounds.$"):
        ours.encode("x")
    ours._tokenizer = Failing(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ours.encode("x")


def test_a_lone_surrogate_is_refused(tmp_path):
    with pytest.raises(PromptError, match="the prompt is not valid Unicode text"):
        TextTokenizer(DEMO / "tokenizer.json", tmp_path).encode("a\ud800")
