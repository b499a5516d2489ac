"""What a conversion leaves out of a checkpoint: said, or refused where it is not what the config says."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from estream.checkpoint.decoders import widen
from estream.checkpoint.source import CheckpointSource
from estream.errors import CheckpointError
from estream.models.config import TensorRef


def left_out(ignored: Mapping[str, str]) -> Iterator[str]:
    """A line for people about each kind of tensors that are left out, from their names and what they are."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, kind in sorted(ignored.items()):
        kinds[kind].append(name)
    for kind, names in kinds.items():
        yield f"left out: {len(names)} tensors {kind} ('{names[0]}', ...)"


def refuse_another_head(
    checkpoint: CheckpointSource, head: TensorRef, embedding: TensorRef, first: int, rows: np.ndarray
) -> None:
    """Compare a tied head that is stored all the same with ``rows`` of the embedding from ``first`` on.

    Raises:
        CheckpointError: they differ, so that one of them would answer otherwise than the other.

    """
    repeated = widen(checkpoint.read_rows(head, first, len(rows)), checkpoint.dtype(head))
    if not np.array_equal(repeated, widen(rows, checkpoint.dtype(embedding))):
        raise CheckpointError(
            f"{checkpoint.tensors[head.name].file.name}: tensor '{head.name}' differs from '{embedding.name}', but config.json "
            "ties the two ('tie_word_embeddings'): set it to false where the head counts, or remove the head's tensor"
        )
