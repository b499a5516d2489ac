"""Tokens and conversations against transformers' own tokenizer."""

import json
import shutil
from pathlib import Path

import pytest
from command import run
from paths import DEMO
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import estream
from estream.conversion.convert import convert
from estream.errors import PackageError, PromptError
from estream.text.chat_template import ChatTemplate
from estream.text.tokenizer import TextTokenizer

TEXTS = ["Hello world", "  two  spaces, naïve café 你好\n\n", "<s>written out</s> <|user|>", "", "x"]
CHATML = (
    "{%- for message in messages %}\n    {{- '<|' + message['role'] + '|>' + message['content'] | trim + eos_token }}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
WITH_BOS = "{{ bos_token }}" + CHATML
USUAL = """
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{% set ns = namespace(seen=0) %}
{% for message in messages %}
    {% if message.role == 'tool' %}{% continue %}{% endif %}
    {% set ns.seen = ns.seen + 1 %}
    {% if message.content is string %}
[{{ ns.seen }}] {{ message.role }}: {{ message.content }}
    {% else %}
{{ message.content | tojson }}{% for part in message.content %}{{ part.text }}{% endfor %}
    {% endif %}
    {% generation %}{{ message.reasoning_content }}{% endgeneration %}
{% endfor %}
{{ dict(a=1)['a'] }}{{ strftime_now('%Y')[:2] }}{{ undefined_name }}{{ extra }}{{ bos_token }}{{ pad_token }}
{% if add_generation_prompt %}assistant:{% endif %}
"""
MESSAGES = [
    {"role": "system", "content": "Be <brief> & 'kind'. "},
    {"role": "user", "content": "Was ist ein Teekesselchen? 你好", "name": None},
    {"role": "tool", "content": "left out"},
    {"role": "assistant", "content": "A homonym.", "thinking": "hm"},
    {"role": "user", "content": [{"type": "text", "text": "And <s> in it?"}]},
]
PLAIN = [{"role": "user", "content": " Hello <s>you "}]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    _train(tokenizer, pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def llama_style(bos_by_post_processor: bool) -> Tokenizer:
    """Metaspace, byte fallback, <s> in front."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    _train(tokenizer, [])
    if bos_by_post_processor:
        ids = [("<s>", tokenizer.token_to_id("<s>"))]
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=ids)
    return tokenizer


def _train(tokenizer: Tokenizer, alphabet: list[str]) -> None:
    special = ["<unk>", "<s>", "</s>", "<|user|>", "<|system|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*TEXTS, CHATML, USUAL, "what is a good day to say hello"] * 3, trainer)


def save(folder: Path, tokenizer: Tokenizer, template: str | dict | None = None, **config) -> PreTrainedTokenizerFast:
    """As transformers writes it; ``config`` is changed afterwards in what is on disk."""
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    if template is not None:
        theirs.chat_template = template
    theirs.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return theirs


def load(folder: Path) -> TextTokenizer:
    return TextTokenizer(folder / "tokenizer.json", folder)


KINDS = {"byte level": byte_level, "llama with bos": lambda: llama_style(True), "llama without": lambda: llama_style(False)}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_get_the_ids_that_transformers_gives(kind: str, tmp_path: Path):
    theirs = save(tmp_path, KINDS[kind]())
    ours = load(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
    assert (ours.encode("x")[0] == theirs.bos_token_id) is (kind == "llama with bos")


@pytest.mark.parametrize("bos_by_post_processor", [True, False])
def test_what_the_config_adds_is_added_exactly_once(bos_by_post_processor: bool, tmp_path: Path):
    plain = llama_style(False)
    save(tmp_path, llama_style(bos_by_post_processor), add_bos_token=True, add_eos_token=True)
    ours = load(tmp_path)
    bos, eos = plain.token_to_id("<s>"), plain.token_to_id("</s>")
    for text in TEXTS:
        assert ours.encode(text) == [bos, *plain.encode(text).ids, eos]


def test_truncation_and_padding_of_a_tokenizer_are_not_applied_to_prompts(tmp_path: Path):
    tokenizer = byte_level()
    whole = tokenizer.encode(TEXTS[1]).ids
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    save(tmp_path, tokenizer)
    assert load(tmp_path).encode(TEXTS[1]) == whole


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
    "a text": ("x", "hello", "messages must be a list"),
    "no role": ("x", [{"content": "hello"}], "message 0 must be an object with a 'role'"),
    "an object": ("x", [{"role": "user", "content": object()}], "message 0 holds a object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_template_or_a_message_cannot_do_is_a_prompt_error(case: str, tmp_path: Path):
    template, messages, words = REFUSED[case]
    with pytest.raises(PromptError, match=words):
        ChatTemplate(tmp_path, {"default": template}, {}).render(messages)


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
