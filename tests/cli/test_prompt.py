"""How prompts and messages are read: bytes in UTF-8, bounded, refused in one line."""

import io
import json
import logging
import sys
from pathlib import Path

import pytest
from command import run

from estream.cli import prompt
from estream.cli.prompt import Conversation, GivenPrompt, one_prompt
from estream.errors import PromptError


def _read(path: Path | str, *, messages: bool = False) -> str | Conversation | int:
    return one_prompt(GivenPrompt(None, None if messages else Path(path), None, Path(path) if messages else None, None))


@pytest.mark.parametrize("content", [b"a\r\nb\rc\nd", "\u00e9\u4f60".encode(), b"x\n", b""])
def test_files_and_standard_input_give_the_same(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "p").write_bytes(content)
    # The locale's encoding does not matter.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "latin-1"))
    assert _read(tmp_path / "p") == _read("-") == content.decode().removesuffix("\n")


def test_a_byte_order_mark_is_dropped_with_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "p").write_bytes(b"\xef\xbb\xbfhello")
    with caplog.at_level(logging.INFO, "estream"):
        assert _read(tmp_path / "p") == "hello"
    assert "the byte order mark at its beginning is not read" in caplog.text


def test_what_is_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "p").write_bytes(b"ab\xff")
    with pytest.raises(PromptError, match="p: not UTF-8 text .invalid start byte at byte 2.$"):
        _read(tmp_path / "p")
    monkeypatch.setattr(prompt, "_LARGEST_TEXT", 2)
    with pytest.raises(PromptError, match="p: more than 2 B of text"):
        _read(tmp_path / "p")
    with pytest.raises(PromptError, match="cannot be read .Is a directory"):
        _read(tmp_path)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(PromptError, match="standard input is closed"):
        _read("-")


HELLO = [{"role": "user", "content": "x"}]
BAD = {
    "nesting": ("[" * 3000 + "]" * 3000, "nested too deeply"),
    "no JSON": ("{", "not valid JSON"),
    "a text": ('"x"', "expected a list of messages"),
    "digits": ("[" + "9" * 5000 + "]", "not valid JSON"),
    "levels": (json.dumps([{"role": "user", "content": json.loads("[" * 400 + "]" * 400)}]), "more than 100 levels deep"),
    "a role": (json.dumps([{"role": ["x"], "content": "x"}]), "message 0 must be an object with a 'role'"),
    "a template": (json.dumps({"messages": HELLO, "template": []}), "'template' must be the name of a chat template"),
    "a surrogate": ('[{"role": "user", "content": "\\ud800"}]', "not valid Unicode"),
}


@pytest.fixture(scope="module")
def chatting(demo_package, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import shutil

    from paths import DEMO

    from estream.conversion.convert import convert

    folder = tmp_path_factory.mktemp("chatting")
    source = shutil.copytree(DEMO, folder / "source")
    (source / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}{{ self_ }}")
    return convert(source, folder / "demo.estream").path


@pytest.mark.parametrize("case", BAD)
def test_bad_messages_are_refused_in_one_line(case: str, chatting: Path, tmp_path: Path):
    content, words = BAD[case]
    (tmp_path / "m.json").write_text(content)
    done = run("run", chatting, "--messages", tmp_path / "m.json")
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_any_name_may_be_a_variable(chatting: Path, tmp_path: Path):
    (tmp_path / "m.json").write_text(json.dumps({"messages": HELLO, "self": 1, "context": 2, "source": 3, "": 4}))
    assert run("run", chatting, "--messages", tmp_path / "m.json", "--json").returncode == 0
