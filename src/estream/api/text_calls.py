"""What a model says of texts without reading its pages: token ids, and conversations by the chat template."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from estream.engine.memory import ModelMemory
from estream.package.package import Package
from estream.text.chat_template import Message, RenderedChat
from estream.text.segments import PromptBuilder
from estream.text.tokenizer import TextTokenizer


class TextCalls:
    """Calls that need the tokenizer alone."""

    _tokenizer: TextTokenizer
    _package: Package
    _memory: ModelMemory

    @cached_property
    def prompts(self) -> PromptBuilder:
        """Makes prompts of texts, as the services do."""
        return PromptBuilder(self._tokenizer, self._package.manifest.config, self._memory.check_scratch)

    @cached_property
    def about(self) -> dict[str, Any]:
        """JSON files that say how the checkpoint is meant to be used, by name."""
        return self._package.about()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, as many as it has, with the special tokens that the tokenizer's own rules add."""
        return [int(token) for token in self._tokenizer.ids(text, check=self._memory.check_scratch)]

    def render(self, /, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> RenderedChat:
        """The text of a conversation by the checkpoint's chat template, as :meth:`ChatTemplate.render` says.

        ``Model.prefill`` takes it, and adds no second beginning-of-sequence token to it.
        """
        return self._tokenizer.chat.render(messages, add_generation_prompt, **variables)

    def encode_chat(self, /, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> list[int]:
        """Token ids of a conversation. Raises PromptError as :meth:`render` does, and where there are more than the context."""
        text, context = self.render(messages, add_generation_prompt, **variables), self._memory.manifest.config.context
        return [int(token) for token in self._tokenizer.ids(text, context, "the conversation", self._memory.check_scratch)]
