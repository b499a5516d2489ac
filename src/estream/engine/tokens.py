"""Text to token ids and back, as the checkpoint's tokenizer says."""

from pathlib import Path

from tokenizers import Tokenizer

from estream.errors import PackageError, PromptError


class TextTokenizer:
    """The package's ``tokenizer.json``; None where the checkpoint had none, and then only ids are taken."""

    def __init__(self, path: Path | None, package: Path) -> None:
        self._package = package
        self._tokenizer: Tokenizer | None = None
        if path is not None:
            try:
                self._tokenizer = Tokenizer.from_file(str(path))
            except Exception as error:  # tokenizers raises plain Exception
                raise PackageError(f"{path}: the tokenizer cannot be read ({error})") from error

    def encode(self, text: str) -> list[int]:
        """Raises PromptError where the package has no tokenizer."""
        if self._tokenizer is None:
            raise PromptError(f"{self._package}: the checkpoint came without a tokenizer, so prompts must be token ids")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(f"the prompt is not valid Unicode text ({error.reason})") from error
        return list(self._tokenizer.encode(text).ids)

    def piece(self, token: int) -> str | None:
        """The text of one token, None without a tokenizer."""
        if self._tokenizer is None:
            return None
        return str(self._tokenizer.decode([token], skip_special_tokens=False))
