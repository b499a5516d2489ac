"""What a model says of texts without reading its pages: token ids, and conversations by the chat template."""

from collections.abc import Sequence
from typing import Any

from estream.text.chat_template import Message, RenderedChat
from estream.text.tokenizer import TextTokenizer


class TextCalls:
    """Calls that need the tokenizer alone."""

    _tokenizer: TextTokenizer

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the tokenizer's own rules add."""
        return self._tokenizer.encode(text)

    def render(self, /, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> RenderedChat:
        """The text of a conversation by the checkpoint's chat template, as :meth:`ChatTemplate.render` says.

        ``Model.prefill`` takes it, and adds no second beginning-of-sequence token to it.
        """
        return self._tokenizer.chat.render(messages, add_generation_prompt, **variables)

    def encode_chat(self, /, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> list[int]:
        """Token ids of a conversation. Raises PromptError as :meth:`render` does."""
        return self._tokenizer.encode(self.render(messages, add_generation_prompt, **variables))
