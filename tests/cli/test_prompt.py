"""Prompts as bytes: UTF-8 in any locale, from files, pipes and standard input alike, and no more than a context can hold."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from cgroup import estream_command
from command import run

from estream.cli.prompt import GivenPrompt, limit_bytes, one_prompt
from estream.errors import PromptError
from estream.host.sizes import MiB
from estream.package.package import Package

CONTEXT = 2048


def read(path: Path) -> str:
    text = one_prompt(GivenPrompt(None, path, None, None, None), CONTEXT)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\r\nb\r\n", "a\r\nb"),
        (b"a\rb\n\n", "a\rb\n"),
        (b"\xef\xbb\xbfa\n", "a"),
        ("żółw\u2028x".encode(), "żółw\u2028x"),
        (b"a\x00b", "a\x00b"),
    ],
)
def test_newlines_and_bytes_stay_as_they_are(data: bytes, text: str, tmp_path: Path):
    (tmp_path / "p").write_bytes(data)
    assert read(tmp_path / "p") == text


@pytest.mark.parametrize("language", ["C", "en_US.ISO-8859-1", "C.UTF-8"])
def test_a_file_and_standard_input_are_the_same_in_any_locale(language: str, demo_package: Package, tmp_path: Path):
    (tmp_path / "p").write_bytes("\ufeffDescription: żółw\r\nSection:\r\n".encode())
    env = os.environ | {"LC_ALL": language, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    answers = []
    for source in (tmp_path / "p", "-"):
        command = estream_command("run", demo_package.path, "--prompt-file", source, "--json")
        with open(tmp_path / "p", "rb") as file:
            result = subprocess.run(command, env=env, stdin=file, capture_output=True, check=True)
        assert b"byte order mark" in result.stderr
        facts = json.loads(result.stdout)
        answers.append((facts["prompt_tokens"], facts["top"]))
    assert answers[0] == answers[1]


def test_what_is_no_text_is_refused_with_its_place(demo_package: Package, tmp_path: Path):
    (tmp_path / "p").write_bytes(b"\xef\xbb\xbfab\xff")
    result = run("run", demo_package.path, "--prompt-file", tmp_path / "p")
    assert result.returncode == 1
    assert f"{tmp_path / 'p'}: not UTF-8 text (invalid start byte at byte 5)" in result.stderr


@pytest.mark.parametrize("option", ["--prompt-file", "--messages"])
def test_more_than_a_context_can_hold_is_not_read(option: str, demo_package: Package, tmp_path: Path):
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 40)
    for path in (tmp_path / "huge", "/dev/zero"):
        begin = time.monotonic()
        result = run("run", demo_package.path, option, path)
        assert time.monotonic() - begin < 2
        assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
        assert "the model's context of 2048 tokens cannot hold" in result.stderr
    assert limit_bytes(CONTEXT) == MiB < limit_bytes(1 << 20)


def test_pipes_are_read_and_folders_are_not(tmp_path: Path):
    reading, writing = os.pipe()
    os.write(writing, b"hello")
    os.close(writing)
    assert read(Path(f"/dev/fd/{reading}")) == "hello"
    os.close(reading)
    with pytest.raises(PromptError, match="Is a directory"):
        read(tmp_path)


def test_deep_messages_are_refused(demo_package: Package, tmp_path: Path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    result = run("run", demo_package.path, "--messages", tmp_path / "deep.json")
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert "nested too deep" in result.stderr


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
