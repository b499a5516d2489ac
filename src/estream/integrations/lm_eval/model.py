"""The model ``estream`` of lm-evaluation-harness.

Texts become ids by the rules of its model ``hf``, so that both score the same tokens. All requests of a task are put in an
order that shares contexts, and as many as memory allows are read in each sweep.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

# Models register themselves; lm-eval would take one of ours for a sign that its own had.
import lm_eval.models  # noqa: F401
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

import estream
from estream.errors import OptionError, PromptError
from estream.integrations.lm_eval.asked import Answer, Asked, BoundedReader, in_order, job_of
from estream.integrations.lm_eval.options import HarnessOptions
from estream.package.package import open_package
from estream.services.jobs import answer_in_order
from estream.services.pairs import first_token
from estream.text.chat_template import RenderedChat


@register_model("estream")
class EstreamLM(TemplateLM):  # type: ignore[misc]  # lm_eval has no types
    """``lm-eval --model estream --model_args pretrained=PKG,memory=1GiB``."""

    def __init__(self, pretrained: str, **given: Any) -> None:
        """Load a package; ``given`` as in :class:`HarnessOptions`.

        Raises:
            OptionError: an option is not known or has no usable value.
            Others: as :func:`estream.load`.

        """
        super().__init__()
        options = HarnessOptions.of(given)
        self._options = options
        device = open_package(pretrained).manifest.device
        self._model = estream.load(pretrained, options.memory, options.threads, device, options.activations)
        context = self._model.prompts.context
        self._max_length = context if options.max_length is None else options.max_length
        if self._max_length > context:
            raise OptionError(f"--model_args: max_length is {self._max_length}, the model's context is {context} tokens")
        prefix, vocabulary = options.prefix_token_id, self._model.prompts.config.vocabulary
        if prefix is not None and not 0 <= prefix < vocabulary:
            raise OptionError(f"--model_args: prefix_token_id is {prefix}, the vocabulary is 0..{vocabulary - 1}")

    @property
    def max_length(self) -> int:
        """Tokens of the longest window."""
        return self._max_length

    @property
    def eot_token_id(self) -> int:
        """The token that texts end with. Raises PromptError where the checkpoint names none."""
        found = self._model.prompts.tokenizer.named("eos_token")
        if found is None:
            raise PromptError(f"{self._model.package.path}: the checkpoint names no token that texts end with")
        return found

    @cached_property
    def prefix_token_id(self) -> int:
        """What an empty context stands for. Raises PromptError where the checkpoint names neither."""
        if self._options.prefix_token_id is not None:
            return self._options.prefix_token_id
        return first_token(self._model.prompts, "a context")

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in lm-eval's cache of requests."""
        return str(self._model.package.path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The text of the chat template by that name; None where none is to be applied. Raises PromptError."""
        if chat_template is False or chat_template is None:
            return None
        self._template = chat_template if isinstance(chat_template, str) else None
        return self._model.prompts.tokenizer.chat.text(self._template)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text. Raises PromptError, and OptionError where its last message is to be gone on with."""
        if not add_generation_prompt:
            raise OptionError("estream cannot go on with an assistant's message (gen_prefix) behind a chat template")
        return str(self._model.render(chat_history, template=getattr(self, "_template", None)))

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval notes beside its results."""
        return {"estream": estream.__version__, "activations": self._options.activations}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The ids of a text, whose special tokens are meant: as the model ``hf`` makes them."""
        tokenizer, check = self._model.prompts.tokenizer, self._model.prompts.check
        special = self._options.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and self._begins(string):
            special = False
        if special is False:
            return [int(token) for token in tokenizer.ids(RenderedChat(string), None, "a text", check)]
        ids = [int(token) for token in tokenizer.ids(string, None, "a text", check)]
        begin = tokenizer.named("bos_token")
        if self._options.add_bos_token and begin is not None and ids[:1] != [begin]:
            return [begin, *ids]
        return ids

    def _begins(self, text: str) -> bool:
        """Whether a text spells out what texts begin with."""
        tokenizer = self._model.prompts.tokenizer
        named = any(tokenizer.named(name) is not None for name in ("bos_token", "eos_token"))
        if not named and self._options.prefix_token_id is None:
            return False
        return text.startswith(tokenizer.piece(self.prefix_token_id) or "\0")

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[Answer]:
        """For each text, context and continuation the continuation's log-probability, and whether it is the likeliest."""
        found: list[Answer] = [(0.0, False)] * len(requests)
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests") as bar:
            for index, answer in self._answers([self._asked(i, *request) for i, request in enumerate(requests)]):
                found[index] = answer
                if (text := requests[index][0]) is not None:
                    self.cache_hook.add_partial("loglikelihood", text, answer)
                bar.update()
        return found

    def _answers(self, asked: list[Asked]) -> Iterator[tuple[int, Answer]]:
        reader = BoundedReader(self._model, self._options.batch_tokens)
        for sweep in answer_in_order(reader, (job_of(group) for group in in_order(asked))):
            for group in sweep:
                yield from group

    def _asked(self, index: int, text: Any, context: list[int], continuation: list[int]) -> Asked:
        """A request, cut from the left to the longest window. Raises PromptError."""
        where = f"request {index}" if text is None else f"the continuation {str(text[-1])[:80]!r}"
        if not continuation:
            raise PromptError(f"{where} is empty, or a part of the context's last token")
        if not context:
            raise PromptError(f"{where} has no context")
        if len(continuation) > self._max_length:
            raise PromptError(f"{where} has {len(continuation)} tokens, the longest window is {self._max_length}")
        # The last token is scored and not read.
        ids = np.array([*context, *continuation][-(self._max_length + 1) :], np.int32)
        return Asked(index, ids, len(continuation))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each whole text, in windows of the longest length that overlap by as little as may be."""
        windows: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            (text,) = request.args
            rolling = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self._max_length, 1)
            for context, following in map(make_disjoint_window, rolling):
                windows.append((None, context, following))
                owners.append(number)
        sums = [0.0] * len(requests)
        for number, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            sums[number] += logprob
        for request, value in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Raises OptionError: estream writes nothing yet."""
        del disable_tqdm
        tasks = ", ".join(sorted({str(request.task_name) for request in requests}))
        raise OptionError(
            f"generate_until, which {tasks} asks for, is not there: estream reads and does not generate; there are "
            "loglikelihood, loglikelihood_rolling and multiple_choice"
        )
