"""End to end: what a sweep reads, and what it leaves unread."""

import numpy as np
from budgets import budget
from routing_recorder import RoutingRecorder
from tiny_answers import PROMPTS

import estream
from estream.api.model import Model
from estream.engine.options import LoadOptions
from estream.host.sizes import MiB


def test_predictions_are_counted(tiny_package):
    with Model(tiny_package, LoadOptions(budget(tiny_package, PROMPTS[:1], 0), 1)) as model:
        recorder = RoutingRecorder(model)
        stats = model.prefill(PROMPTS[0]).stats
    used = len(np.unique(recorder.seen[1][0]))
    assert 0 < stats.prediction["right"] <= stats.prediction["predicted"] < used


def test_a_second_prompt_on_a_model_in_memory_reads_only_embedding_rows(tiny_package):
    with estream.load(tiny_package.path) as model:
        first, second = model.prefill(PROMPTS[-1]).stats, model.prefill(PROMPTS[-1]).stats
    assert second.bytes_read <= len(PROMPTS[-1]) * 8192
    assert first.bytes_read > second.bytes_read


def test_no_page_is_read_twice_in_a_sweep(tiny_package):
    with Model(tiny_package, LoadOptions(budget(tiny_package, PROMPTS[-1:], 0), 1)) as model:
        for _ in range(2):
            stats = model.prefill(PROMPTS[-1]).stats
            assert 0 < stats.config["ring_bytes"] < tiny_package.manifest.pages_bytes
            assert stats.bytes_read <= tiny_package.manifest.pages_bytes + len(PROMPTS[-1]) * 8192


def test_the_last_layer_reads_only_the_experts_of_wanted_positions(tiny_package):
    with Model(tiny_package, LoadOptions(budget(tiny_package, PROMPTS[-1:], MiB), 1)) as model:
        recorder = RoutingRecorder(model)
        one = model.prefill(PROMPTS[-1]).stats
        every = model.prefill(PROMPTS[-1], positions=range(len(PROMPTS[-1]))).stats
    used = [len(np.unique(ids)) for ids, _ in recorder.seen]
    page = tiny_package.manifest.tape[-2].padded_bytes
    assert used[2] == tiny_package.manifest.config.moe.top_k
    assert used[5] >= 2 * used[2]
    # The first prompt teaches what the second one reads ahead, and that may be useless.
    needed = [stats.bytes_read - stats.embedding_bytes - stats.bytes_unused for stats in (one, every)]
    assert needed[1] - needed[0] == (used[5] - used[2]) * page
