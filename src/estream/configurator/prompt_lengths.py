"""The prompt lengths that a configuration is chosen for, and those that a plan tells of."""

from estream.engine.batch import BatchShape
from estream.engine.memory import ModelMemory

#: Tokens of the prompts that a configuration's cost is told for, where the user names none.
SEARCHED_TOKENS = (16, 256, 1024)
#: Tokens of a short prompt, such as most are.
SHORT_TOKENS = 16
#: Tokens of the prompts that no choice may make slower.
JUDGED_TOKENS = (1, 16, 64, 256, 1024)
#: Tokens of the prompts that a plan estimates, where the user names none.
REPORTED_TOKENS = (16, 128, 512, 1024, 2048, 4096)


def searched_shapes(memory: ModelMemory) -> tuple[BatchShape, ...]:
    """Prompts that a configuration is chosen for; shorter ones where the budget or the context is small."""
    lengths = sorted({min(n, memory.planned_tokens) for n in SEARCHED_TOKENS})
    shapes = tuple(map(BatchShape.of_prompt, lengths))
    return tuple(shape for shape in shapes if memory.fits(shape)) or (BatchShape.of_prompt(1),)


def judged_shapes(memory: ModelMemory) -> tuple[BatchShape, ...]:
    """Short and long prompts, within the model's context."""
    return tuple(map(BatchShape.of_prompt, sorted({min(n, memory.planned_tokens) for n in JUDGED_TOKENS})))


def reported_tokens(context: int) -> list[int]:
    """Prompt lengths that a plan estimates, within the model's context."""
    return [n for n in REPORTED_TOKENS if n <= context] or [context]
