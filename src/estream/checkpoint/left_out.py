"""Tensors that a conversion leaves out of the package: notes for the user, and a check of the tied head."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from estream.checkpoint.decoders import widen
from estream.checkpoint.source import CheckpointSource
from estream.errors import CheckpointError
from estream.models.config import TensorRef


def left_out_notes(ignored: Mapping[str, str]) -> Iterator[str]:
    """Yield a note for each description in ``ignored`` (``ModelTensors.ignored``), with the number of its tensors."""
    names_of: dict[str, list[str]] = defaultdict(list)
    for name, description in sorted(ignored.items()):
        names_of[description].append(name)
    for description, names in names_of.items():
        yield f"left out: {len(names)} tensors {description} ('{names[0]}', ...)"


def check_tied_head(checkpoint: CheckpointSource, head: TensorRef, embedding: TensorRef, first: int, rows: np.ndarray) -> None:
    """Check that a stored head that the config ties to the embedding repeats ``rows``, the embedding's from ``first`` on.

    Raises:
        CheckpointError: the two differ.

    """
    head_rows = widen(checkpoint.read_rows(head, first, len(rows)), checkpoint.dtype(head))
    if not np.array_equal(head_rows, widen(rows, checkpoint.dtype(embedding))):
        raise CheckpointError(
            f"{checkpoint.tensors[head.name].file.name}: tensor '{head.name}' differs from '{embedding.name}', but config.json "
            "ties the two ('tie_word_embeddings'): set it to false to use the head, or remove the head's tensor"
        )
