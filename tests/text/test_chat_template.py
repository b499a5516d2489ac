"""Conversations against transformers' own chat templates."""

import functools
import json
import shutil
import tracemalloc
from pathlib import Path

import pytest
from command import run
from paths import DEMO
from text_tokenizers import CHATML, KINDS, MESSAGES, PLAIN, USUAL, WITH_BOS, byte_level, load, save

import estream
from estream.conversion.convert import convert
from estream.errors import PackageError, PromptError
from estream.text.chat_template import ChatTemplate


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", [CHATML, WITH_BOS, USUAL], ids=["chatml", "with bos", "usual"])
@pytest.mark.parametrize("generation", [True, False])
def test_conversations_are_those_of_transformers(kind: str, template: str, generation: bool, tmp_path: Path):
    theirs = save(tmp_path, KINDS[kind](), template)
    ours = load(tmp_path)
    variables = {"extra": "<more>", "tools": [{"name": "f", "größe": 1}]}
    for messages in (PLAIN, MESSAGES) if template == USUAL else (PLAIN, PLAIN * 3):
        text = ours.chat.render(messages, generation, **variables)
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation, **variables)
        assert text == expected
        ids = theirs.apply_chat_template(messages, add_generation_prompt=generation, **variables)["input_ids"]
        assert ours.encode(text) == ids
    # What the template writes is all the beginning there is.
    assert ours.encode(ours.chat.render(PLAIN))[:2].count(theirs.bos_token_id) == (template == WITH_BOS)


@pytest.mark.parametrize("token", ["\ud800", "a\0b"])
def test_a_special_token_that_the_tokenizer_cannot_have_is_refused(token: str, tmp_path: Path):
    save(tmp_path, byte_level(), add_bos_token=True, bos_token=token)
    with pytest.raises(PackageError, match="tokenizer_config.json: 'bos_token' .* (cannot be used|is not in)"):
        load(tmp_path)


def test_templates_are_found_wherever_they_are_kept(tmp_path: Path):
    named = {"default": "D{{ messages[0].content }}", "tool_use": "T{{ tools | length }}", "rag": "R"}
    save(tmp_path, byte_level(), chat_template=[{"name": n, "template": t} for n, t in named.items()])
    chat = load(tmp_path).chat
    assert chat.render(PLAIN) == "D Hello <s>you "
    assert chat.render(PLAIN, tools=[1, 2]) == "T2"
    assert chat.render(PLAIN, template="rag") == "R"
    with pytest.raises(PromptError, match="no chat template 'other'; there are: default, rag, tool_use"):
        chat.render(PLAIN, template="other")
    save(tmp_path, byte_level(), chat_template="from the config")
    assert load(tmp_path).chat.render(PLAIN) == "from the config"
    (tmp_path / "chat_template.jinja").write_text("from its file")
    assert load(tmp_path).chat.render(PLAIN) == "from its file"
    save(tmp_path / "bad", byte_level(), chat_template=[{"name": "default"}])
    with pytest.raises(PackageError, match="'chat_template' must be a text or a list of named texts"):
        load(tmp_path / "bad")


REFUSED = {
    "its own refusal": ("{{ raise_exception('roles must alternate') }}", PLAIN, "refuses these messages: roles must alternate"),
    "a syntax error": ("{% if %}", PLAIN, "fails with these messages .TemplateSyntaxError"),
    "a failing expression": ("{{ 1 + none }}", PLAIN, "fails with these messages .TypeError"),
    "a way out": ("{{ ''.__class__.__mro__ }}", PLAIN, "fails with these messages .SecurityError"),
    "a way in": ("{% set ns = namespace() %}{% set ns.__init__ = 1 %}", PLAIN, "SecurityError"),
    "a change": ("{{ messages.append(1) }}", PLAIN, "SecurityError"),
    "no messages": ("x", [], "at least one message"),
    "a role of brackets": ("x", [{"role": functools.reduce(lambda x, _: [x], range(5000), [])}], "too large to show"),
    "a role of many digits": ("x", [{"role": 10**5000}], "too large to show"),
    "a text": ("x", "hello", "messages must be a list"),
    "no role": ("x", [{"content": "hello"}], "message 0 must be an object with a 'role'"),
    "an object": ("x", [{"role": "user", "content": object()}], "message 0 holds a object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_template_or_a_message_cannot_do_is_a_prompt_error(case: str, tmp_path: Path):
    template, messages, words = REFUSED[case]
    with pytest.raises(PromptError, match=words):
        ChatTemplate(tmp_path, {"default": template}, {}).render(messages)


def test_a_template_that_makes_more_than_the_context_is_refused(tmp_path: Path):
    source = shutil.copytree(DEMO, tmp_path / "source")
    grown = "{% set n = namespace(s='word word ') %}{% for i in range(20) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}"
    (source / "chat_template.jinja").write_text(grown)
    package = convert(source, tmp_path / "demo.estream")
    with estream.load(package.path) as model:
        messages = [{"role": "user", "content": "Hello"}]
        assert len(model.render(messages)) > 8 << 20
        tracemalloc.start()
        try:
            with pytest.raises(PromptError, match="the conversation has more than 2048 tokens, the model's context is 2048"):
                model.encode_chat(messages)
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()


def test_a_conversation_goes_from_the_command_line_to_logits(tmp_path: Path):
    source = shutil.copytree(DEMO, tmp_path / "source")
    (source / "chat_template.jinja").write_text("{{ bos_token }}{% for m in messages %}{{ m.content }}\nSection:{% endfor %}")
    package = convert(source, tmp_path / "demo.estream")
    text = "Description: A web server written in C"
    messages = [{"role": "user", "content": text}]
    with estream.load(package.path) as model:
        rendered = model.render(messages)
        assert rendered == f"<|endoftext|>{text}\nSection:"
        ids = model.encode_chat(messages)
        assert ids == [model.encode("<|endoftext|>")[-1], *model.encode(f"{text}\nSection:")]
        best = model.top(model.prefill(ids), 5)
        assert model.top(model.prefill(rendered), 5) == best
    (tmp_path / "chat.json").write_text(json.dumps({"messages": messages, "model": "any"}))
    for arguments in (["--chat", text], ["--messages", tmp_path / "chat.json"]):
        shown = json.loads(run("run", package.path, *arguments, "--json").stdout)
        assert shown["prompt_tokens"] == len(ids)
        assert [t["id"] for t in shown["top"]] == [t.id for t in best]
    (tmp_path / "chat.json").write_text('{"messages": 1}')
    refused = run("run", package.path, "--messages", tmp_path / "chat.json")
    assert refused.returncode == 1
    assert "expected a list of messages" in refused.stderr
