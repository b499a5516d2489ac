"""Builds ``tokenizer.json`` from the tokenizer in a GGUF file: byte-level BPE ("gpt2") or SentencePiece BPE ("llama")."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from estream.checkpoint.gguf.pretokenizers import word_rule
from estream.schema import shown

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "\u2581"
_LONGEST_TOKEN = 1024


class _UnfaithfulError(Exception):
    """The built tokenizer would give other ids than the original; the message says why."""


@dataclass(frozen=True)
class _Metadata:
    """The keys below ``tokenizer.ggml.``; ``vocabulary`` is the number of embedding rows."""

    values: Mapping[str, Any]
    vocabulary: int

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(f"tokenizer.ggml.{key}", default)

    @property
    def tokens(self) -> list[str]:
        tokens = self.get("tokens")
        if not isinstance(tokens, list) or not tokens:
            raise _UnfaithfulError("the file holds no tokens")
        if len(tokens) > self.vocabulary:
            raise _UnfaithfulError(f"the file holds {len(tokens)} tokens for {self.vocabulary} embedding rows")
        if len(set(tokens)) != len(tokens):
            raise _UnfaithfulError("two tokens have the same text")
        longest = max(range(len(tokens)), key=lambda number: len(tokens[number]))
        # Looking for the merges of a token takes time with the square of its length.
        if len(tokens[longest]) > _LONGEST_TOKEN:
            raise _UnfaithfulError(f"token {longest} has {len(tokens[longest])} characters, at most {_LONGEST_TOKEN} are read")
        return tokens

    def numbers(self, key: str, count: int) -> np.ndarray:
        values = self.get(key)
        if not isinstance(values, np.ndarray) or len(values) != count:
            raise _UnfaithfulError(f"'tokenizer.ggml.{key}' does not hold a number for each of the {count} tokens")
        return values

    def token(self, name: str, default: int | None = None) -> str | None:
        """Return the text of a special token such as "bos"; None where there is none."""
        number = self.get(f"{name}_token_id", default)
        if number is None:
            return None
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(self.tokens):
            raise _UnfaithfulError(
                f"'tokenizer.ggml.{name}_token_id' is {shown(number)}, not one of the {len(self.tokens)} tokens"
            )
        return self.tokens[number]

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise _UnfaithfulError(f"'tokenizer.ggml.{key}' must be true or false, found {shown(value)}")
        return value


@dataclass(frozen=True)
class _Built:
    tokenizer: Tokenizer
    bos: str | None
    eos: str | None
    unknown: str | None
    add_bos: bool


def tokenizer_files(metadata: Mapping[str, Any], vocabulary: int) -> tuple[dict[str, bytes], str | None]:
    """Return files for the package by name, and None or the reason why they contain no tokenizer.

    A tokenizer that would give other ids than the original is not built. The chat template does not depend on that.
    """
    files: dict[str, bytes] = {}
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        files["chat_template.jinja"] = template.encode()
    try:
        keys = _Metadata(metadata, vocabulary)
        built = _build(keys)
        add_eos = keys.flag("add_eos_token", False)
        _add_special_tokens(built, keys, add_eos)
        pad = keys.token("padding")
    except _UnfaithfulError as reason:
        return files, str(reason)
    files["tokenizer.json"] = built.tokenizer.to_str().encode()
    special = {"bos_token": built.bos, "eos_token": built.eos, "unk_token": built.unknown, "pad_token": pad}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": built.add_bos,
        "add_eos_token": add_eos,
        "clean_up_tokenization_spaces": False,
    } | {name: text for name, text in special.items() if text is not None}
    files["tokenizer_config.json"] = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
    return files, None


def _build(keys: _Metadata) -> _Built:
    kind = keys.get("model")
    try:
        if kind == "gpt2":
            return _byte_level(keys)
        if kind == "llama":
            return _sentencepiece(keys)
    except _UnfaithfulError:
        raise
    except Exception as error:  # tokenizers raises plain Exception
        raise _UnfaithfulError(f"its parts do not fit together ({error})") from error
    raise _UnfaithfulError("the file holds none" if kind is None else f"tokenizers of kind {shown(kind)} are not built")


def _byte_level(keys: _Metadata) -> _Built:
    name = keys.get("pre", "default")
    rule = word_rule(name)
    if rule is None:
        raise _UnfaithfulError(f"its pre-tokenizer '{name}' is not supported")
    tokens, merges = keys.tokens, keys.get("merges")
    if not isinstance(merges, list):
        raise _UnfaithfulError("the file holds no merges")
    # A merge is two tokens with a space between. Byte-level BPE writes spaces as another letter, so tokens contain none.
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=rule.ignore_merges))
    if rule.normalizer is not None:
        tokenizer.normalizer = rule.normalizer
    tokenizer.pre_tokenizer = rule.pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return _Built(
        tokenizer,
        bos=keys.token("bos"),
        eos=keys.token("eos"),
        unknown=keys.token("unknown"),
        add_bos=keys.flag("add_bos_token", rule.add_bos),
    )


def _sentencepiece(keys: _Metadata) -> _Built:
    if keys.flag("remove_extra_whitespaces", False):
        raise _UnfaithfulError("it removes spaces, which is not built")
    tokens = keys.tokens
    vocabulary = {token: number for number, token in enumerate(tokens)}
    scores, types = keys.numbers("scores", len(tokens)), keys.numbers("token_type", len(tokens))
    unknown = keys.token("unknown", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(vocabulary, scores, types),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = keys.flag("add_space_prefix", True)
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return _Built(
        tokenizer, bos=keys.token("bos", 1), eos=keys.token("eos", 2), unknown=unknown, add_bos=keys.flag("add_bos_token", True)
    )


def _merges(vocabulary: Mapping[str, int], scores: np.ndarray, types: np.ndarray) -> list[tuple[str, str]]:
    """SentencePiece joins the two neighbours whose union has the highest score. The same as a list of merges: for each
    token, highest score first, all ways to split it into two tokens.
    """
    normal = {token: number for token, number in vocabulary.items() if types[number] == _NORMAL}
    ranked = sorted(normal.items(), key=lambda item: (-float(scores[item[1]]), item[1]))
    merges: list[tuple[str, str]] = []
    for token, _ in ranked:
        cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs = [pair for pair in cuts if pair[0] in normal and pair[1] in normal]
        merges += sorted(pairs, key=lambda pair: (normal[pair[0]], normal[pair[1]]))
    return merges


def _add_special_tokens(built: _Built, keys: _Metadata, add_eos: bool) -> None:
    """Declare the tokens that are matched in the text before BPE, and those added at its beginning and end."""
    tokens = keys.tokens
    types = list(zip(tokens, keys.numbers("token_type", len(tokens)), strict=True))
    special = [AddedToken(t, normalized=False, special=True) for t, kind in types if kind in (_CONTROL, _UNKNOWN)]
    built.tokenizer.add_special_tokens(special)
    built.tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in types if kind == _USER_DEFINED])
    before, after = built.bos if built.add_bos else None, built.eos if add_eos else None
    if (built.add_bos and before is None) or (add_eos and after is None):
        raise _UnfaithfulError("it adds a token at the beginning or end, but does not say which")
    around = [token for token in (before, after) if token is not None]
    if around:
        built.tokenizer.post_processor = _around(before, after, {token: tokens.index(token) for token in around})


def _around(before: str | None, after: str | None, ids: Mapping[str, int]) -> processors.PostProcessor:
    """Adds tokens by their ids. The library's own notation is not used: in it, a token whose text is "$A" is the prompt."""

    def around(sequence: str, kind: int) -> list[dict[str, Any]]:
        first, last = ([] if t is None else [{"SpecialToken": {"id": t, "type_id": kind}}] for t in (before, after))
        return [*first, {"Sequence": {"id": sequence, "type_id": kind}}, *last]

    special = {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in ids.items()}
    form = {"type": "TemplateProcessing", "single": around("A", 0), "pair": around("A", 0) + around("B", 1)}
    made = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    made.__setstate__(json.dumps(form | {"special_tokens": special}).encode())
    return made
