"""The bytes that a token stands for. Two tokens may have the same text, and one may be a part of a character."""

import re

from tokenizers import Tokenizer

from estream.text.splitting import parts_of, state

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes with: printable ones as they are, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class TokenBytes:
    """Tells them by the kind of a tokenizer: byte-level, or SentencePiece's with a mark for spaces and bytes as ``<0xE2>``."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()}
        steps = [state(tokenizer.pre_tokenizer), state(tokenizer.decoder), *_decoders(state(tokenizer.decoder))]
        kinds = {part.get("type") for step in steps for part in parts_of(step)}
        self._alphabet = _byte_alphabet() if "ByteLevel" in kinds else None

    def __call__(self, token: int) -> bytes:
        """Empty for an id that the vocabulary has no token for."""
        if token in self._added:
            return self._added[token].encode()
        text = self._tokenizer.id_to_token(token)
        if text is None:
            return b""
        if self._alphabet is not None:
            # A vocabulary may have tokens that are not written in the alphabet.
            return bytes(self._alphabet[c] for c in text) if all(c in self._alphabet for c in text) else text.encode()
        if byte := _FALLBACK.fullmatch(text):
            return bytes([int(byte[1], 16)])
        return text.replace(_SPACE, " ").encode()


def shown_bytes(data: bytes) -> str:
    r"""A token's text; ``bytes:`` and escapes where it is a part of a character, as ``bytes:\xe2\x80``."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _decoders(found: dict[str, object]) -> list[dict[str, object]]:
    steps = found.get("decoders")
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
