"""End to end: damaged, truncated and replaced packages give a clear error or the right answer, never a wrong one, and the
model stays usable.
"""

import os
import random
import threading
import time

import numpy as np
import pytest
from demo_answers import IDS, flip, streaming

from estream.api.model import Model
from estream.errors import ReadError
from estream.package.package import Package


def _check(model: Model, demo_logits: np.ndarray) -> bool:
    """True for the right answer, False for a clear error; a wrong answer fails."""
    try:
        result = model.prefill(IDS)
    except ReadError as error:
        message = str(error)
    else:
        np.testing.assert_array_equal(result.logits, demo_logits)
        return True
    assert ".bin: " in message
    assert " at offset " in message
    return False


def test_a_flipped_bit_anywhere_is_an_error_or_harmless_and_the_model_recovers(demo_copy: Package, demo_logits: np.ndarray):
    rng, outcomes = random.Random(0), []
    for _ in range(100):
        path = rng.choice([demo_copy.pages_path] * 5 + [demo_copy.embedding_path])
        offset = rng.randrange(path.stat().st_size)
        flip(path, offset)
        with streaming(demo_copy) as model:
            outcomes.append(_check(model, demo_logits))
            flip(path, offset)
            assert _check(model, demo_logits)
    assert outcomes.count(False) > 50


def test_the_message_names_file_page_and_offset(demo_copy: Package):
    page = next(p for p in demo_copy.manifest.tape if p.spec.kind == "attention" and p.spec.layer == 3)
    flip(demo_copy.pages_path, page.offset + 1000)
    with streaming(demo_copy) as model, pytest.raises(ReadError) as error:
        model.prefill(IDS)
    assert str(error.value) == (
        f"{demo_copy.pages_path}: layer 3 attention at offset {page.offset}: wrong checksum, the bytes on disk are damaged; "
        "convert the model again"
    )


def test_a_flipped_embedding_row_is_named(demo_copy: Package):
    record = demo_copy.manifest.embedding_record_bytes
    flip(demo_copy.embedding_path, 57 * record + 3)
    with streaming(demo_copy) as model:
        with pytest.raises(ReadError, match=rf"embedding row 57 at offset {57 * record}: wrong checksum"):
            model.prefill(IDS)
        assert model.prefill([1, 2, 3]).logits.shape == (8192,)


def test_a_file_truncated_after_loading_is_an_error_until_it_is_whole_again(demo_copy: Package, demo_logits: np.ndarray):
    rng, whole = random.Random(1), demo_copy.pages_path.read_bytes()
    for _ in range(40):
        with streaming(demo_copy) as model:
            os.truncate(demo_copy.pages_path, rng.randrange(len(whole)))
            assert not _check(model, demo_logits)
            demo_copy.pages_path.write_bytes(whole)
            assert _check(model, demo_logits)


def test_a_replaced_file_is_not_seen_by_a_loaded_model(demo_copy: Package, demo_logits: np.ndarray):
    """The lanes hold the old file open, so what replaces it by renaming cannot mix with it."""
    with streaming(demo_copy) as model:
        other = demo_copy.path / "other"
        other.write_bytes(bytes(demo_copy.pages_path.stat().st_size))
        other.rename(demo_copy.pages_path)
        assert _check(model, demo_logits)
    with streaming(demo_copy) as model:
        assert not _check(model, demo_logits)


def test_a_file_that_changes_while_it_is_read_never_gives_a_wrong_answer(demo_copy: Package, demo_logits: np.ndarray):
    stop = threading.Event()

    def vandal() -> None:
        rng = random.Random(2)
        while not stop.is_set():
            offset = rng.randrange(demo_copy.pages_path.stat().st_size)
            flip(demo_copy.pages_path, offset)
            time.sleep(0.002)
            flip(demo_copy.pages_path, offset)

    thread = threading.Thread(target=vandal)
    thread.start()
    try:
        for _ in range(40):
            with streaming(demo_copy) as model:
                _check(model, demo_logits)
    finally:
        stop.set()
        thread.join()
