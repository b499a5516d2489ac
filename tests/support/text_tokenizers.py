"""Small tokenizers of the usual kinds, and chat templates."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

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
