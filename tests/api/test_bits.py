"""Moving bytes changes no bit: any budget, thread count, page residency, batch and chunking give the same logits."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from budgets import budget
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from routing_recorder import RoutingRecorder
from tiny import OLMOE_SHAPES, make_olmoe

import estream
from estream.api.model import Model
from estream.conversion.convert import ConvertOptions, convert
from estream.devices.cpu import activations
from estream.engine.options import LoadOptions
from estream.errors import BudgetError, OptionError, PromptError, StateError
from estream.host import limits
from estream.host.sizes import KiB, MiB
from estream.package.package import Package

PROMPTS = [list(range(1, n + 1)) for n in (1, 7, 33, 64, 90)]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = tmp_path_factory.mktemp("bits")
    make_olmoe(folder / "source", OLMOE_SHAPES["64 experts, clipped, odd sizes"])
    return convert(folder / "source", folder / "tiny.estream", ConvertOptions(4, 32))


@pytest.fixture(scope="module")
def alone(package: Package) -> list[np.ndarray]:
    """Each prompt on its own, all in memory, one thread."""
    with estream.load(package.path, threads=1) as model:
        return [model.prefill(prompt).logits for prompt in PROMPTS]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spare=st.integers(0, 8) | st.just(4096),
    threads=st.integers(1, 4),
    lanes=st.integers(1, 8),
    request=st.sampled_from([4 * KiB, 64 * KiB, 2 * MiB]),
    chunk=st.sampled_from([1, 16, 37, 512]),
    window=st.sampled_from([0, 1, 256]),
    pinned=st.sampled_from([None, 0, 300 * KiB]),
    order=st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=8),
    direct=st.booleans(),
)
def test_logits_are_identical(package, alone, spare, threads, lanes, request, chunk, window, pinned, order, direct):
    prompts = [PROMPTS[i] for i in order]
    options = LoadOptions(
        budget(package, prompts, spare * MiB),
        threads,
        lanes=lanes,
        request_bytes=request,
        ring_bytes=window * MiB,
        pinned_bytes=pinned,
        direct_io=direct,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activations, "CHUNK", chunk)
        for module in ("cpu.device", "cpu.attention", "cpu.gated_delta"):
            patch.setattr(f"estream.devices.{module}.CHUNK", chunk)
        patch.setattr(activations, "EXPERT_ROWS", max(1, chunk // 2))
        with Model(package, options) as model:
            for _ in range(2):
                for index, result in zip(order, model.prefill_batch(prompts), strict=True):
                    np.testing.assert_array_equal(result.logits, alone[index])


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wrong=st.frozensets(st.integers(0, 63), max_size=30),
    keep=st.booleans(),
    spare=st.integers(0, 3),
    prompt=st.sampled_from(PROMPTS[:2]),
)
def test_a_wrong_prediction_changes_no_bit_and_deadlocks_nothing(package, alone, wrong, keep, spare, prompt):
    """Whatever is predicted, in the smallest ring: missed experts are read in their place."""
    with Model(package, LoadOptions(budget(package, [prompt], spare * MiB), 1, request_bytes=64 * KiB)) as model:
        original = model._device.experts_to_prefetch
        model._device.experts_to_prefetch = lambda spec, address: original(spec, address) | wrong if keep else wrong
        for _ in range(2):
            result = model.prefill(prompt)
            np.testing.assert_array_equal(result.logits, alone[PROMPTS.index(prompt)])
        prediction = result.stats.prediction
        assert prediction["predicted"] >= (len(wrong) if not result.stats.config["pinned_pages"] else 0)


def test_predictions_are_counted(package):
    with Model(package, LoadOptions(budget(package, PROMPTS[:1], 0), 1)) as model:
        recorder = RoutingRecorder(model)
        stats = model.prefill(PROMPTS[0]).stats
    used = len(np.unique(recorder.seen[1][0]))
    assert 0 < stats.prediction["right"] <= stats.prediction["predicted"] < used


def test_a_second_prompt_on_a_model_in_memory_reads_only_embedding_rows(package):
    with estream.load(package.path) as model:
        first, second = model.prefill(PROMPTS[-1]).stats, model.prefill(PROMPTS[-1]).stats
    assert second.bytes_read <= len(PROMPTS[-1]) * 8192
    assert first.bytes_read > second.bytes_read


def test_no_page_is_read_twice_in_a_sweep(package):
    with Model(package, LoadOptions(budget(package, PROMPTS[-1:], 0), 1)) as model:
        for _ in range(2):
            stats = model.prefill(PROMPTS[-1]).stats
            assert 0 < stats.config["ring_bytes"] < package.manifest.pages_bytes
            assert stats.bytes_read <= package.manifest.pages_bytes + len(PROMPTS[-1]) * 8192


def test_the_last_layer_reads_only_the_experts_of_wanted_positions(package):
    with Model(package, LoadOptions(budget(package, PROMPTS[-1:], MiB), 1)) as model:
        recorder = RoutingRecorder(model)
        one = model.prefill(PROMPTS[-1]).stats
        every = model.prefill(PROMPTS[-1], positions=range(len(PROMPTS[-1]))).stats
    used = [len(np.unique(ids)) for ids, _ in recorder.seen]
    page = package.manifest.tape[-2].padded_bytes
    assert used[2] == package.manifest.config.moe.top_k
    assert used[5] >= 2 * used[2]
    # Embedding rows may share blocks in one run and not in the other, hence less than a page of difference.
    assert abs(every.bytes_read - one.bytes_read - (used[5] - used[2]) * page) < page


def test_below_the_floor_is_refused_with_the_floor_and_its_parts(package):
    with pytest.raises(
        BudgetError, match=r"below the floor of .* for 1 tokens: process .*, activations .*, the largest pages"
    ) as e:
        estream.load(package.path, memory=limits.resident_bytes() // 2)
    with estream.load(package.path, memory=e.value.floor_bytes + 8 * MiB) as model:
        assert model.prefill([1]).logits.shape == (330,)
        with pytest.raises(BudgetError, match="shorten the prompt"):
            model.prefill_batch([list(range(300))] * 3000)
        assert model.prefill([1]).logits.shape == (330,)


def test_bad_prompts_are_refused_at_the_door(package):
    with estream.load(package.path) as model:
        for prompt, message in (
            ([], "is empty"),
            ([330], r"id 330, the vocabulary is 0\.\.329"),
            ([-1], "id -1"),
            ([0] * 513, "513 tokens, the model's context is 512"),
            ([[1, 2]], "flat sequence"),
            ([0.5], "whole-number"),
            ("text", "without a tokenizer"),
            ([[1], [2, 3]], "flat sequence"),
        ):
            with pytest.raises(PromptError, match=message):
                model.prefill(prompt)
        with pytest.raises(PromptError, match="prompt 1 is empty"):
            model.prefill_batch([[1], []])
        with pytest.raises(PromptError, match="position 2 is outside the prompt of 2 tokens"):
            model.prefill([1, 2], positions=[2])
        with pytest.raises(PromptError, match="no prompt"):
            model.prefill_batch([])
        with pytest.raises(PromptError, match="must be a list of texts"):
            model.prefill_batch("hello")
        with pytest.raises(PromptError, match="positions of the prompt must be whole numbers"):
            model.prefill([1, 2], positions=[0.5])
        with pytest.raises(PromptError, match="position 7 is outside prompt 1 of 1 tokens"):
            model.prefill_batch([[1], [2]], [[0], [7]])
        with pytest.raises(OptionError, match="count of at least 1"):
            model.top(model.prefill([1]), 0)


def test_bad_options_are_refused(package):
    for options, message in (
        ({"device": "gpu"}, "device"),
        ({"activations": "int4"}, "activations"),
        ({"threads": 0}, "threads"),
        ({"memory": "much"}, "not a size"),
        ({"memory": 1.5e9}, "not a size"),
        ({"memory": "9999999TB"}, "below 1 PiB"),
    ):
        with pytest.raises((OptionError, estream.EstreamError), match=message):
            estream.load(package.path, **options)


def test_calls_from_several_threads_queue(package, alone):
    results: dict[int, np.ndarray] = {}
    with estream.load(package.path) as model:

        def work(index: int) -> None:
            results[index] = model.prefill(PROMPTS[index]).logits

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for index, expected in enumerate(alone):
        np.testing.assert_array_equal(results[index], expected)


def test_a_forked_child_closes_and_ends_by_itself(package):
    program = (
        "import os, sys, estream\n"
        "model = estream.load(sys.argv[1])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    model.close()\n"
        "    sys.exit(7)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "print(status, model.prefill([1]).logits.shape)"
    )
    run = subprocess.run([sys.executable, "-c", program, package.path], capture_output=True, text=True, check=True, timeout=60)
    assert (run.stdout, run.stderr) == ("7 (330,)\n", "")


def test_closed_and_forked_models_say_so(package):
    model = estream.load(package.path)
    child = os.fork()
    if child == 0:
        try:
            model.prefill([1])
        except StateError as error:
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    model.close()
    model.close()
    with pytest.raises(StateError, match="closed"):
        model.prefill([1])
