"""End to end: what many callers ask through a scheduler has the bits that each would get alone."""

import asyncio
import gc
import json
import subprocess
import sys
import threading
from typing import Any

import many_callers
import numpy as np
import pytest
from demo_answers import IDS, flip, streaming
from hypothesis import given, settings
from hypothesis import strategies as st
from loaded import instead_of

import estream
from estream.api.model import Model
from estream.api.services import TextServices
from estream.engine.wanted import ALL, Hidden, Likeliest, LogProbabilities, Request
from estream.errors import BudgetError, CancelledError, PromptError, ReadError, StateError
from estream.package.package import Package

TEXTS = [f"Description: Play chess {word}\nSection:" for word in ("alone", "with friends", "at night", "by mail")]


@pytest.fixture(scope="module")
def model(demo_package: Package):
    with streaming(demo_package) as model:
        yield model


def test_answers_have_the_bits_of_each_alone(model: Model):
    requests = [Request(TEXTS[0]), Request(TEXTS[1], ALL, Likeliest(4)), Request(IDS, ALL, Hidden()), Request(TEXTS[2], [0, 3])]
    alone = [model.read([each])[0] for each in requests]
    with estream.Scheduler(model) as scheduler:
        tickets = [scheduler.submit([each]) for each in requests]
        for ticket, expected in zip(tickets, alone, strict=True):
            (found,) = ticket.result()
            assert found.values.keys() == expected.values.keys()
            for name, value in expected.values.items():
                np.testing.assert_array_equal(found.values[name], value)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 59), st.sampled_from("abc")), min_size=1, max_size=25), st.integers(1, 400))
def test_no_way_of_filling_sweeps_changes_a_bit(model: Model, chosen: list[tuple[int, str]], sweep_tokens: int):
    requests = many_callers.varied(model.package.manifest.config.vocabulary, 60)
    with estream.Scheduler(model, sweep_tokens=sweep_tokens) as scheduler:
        tickets = [(scheduler.submit([requests[i]], caller=who), requests[i]) for i, who in chosen]
        for ticket, request in tickets:
            (found,), (expected,) = ticket.result(), model.read([request])
            for name, value in expected.values.items():
                np.testing.assert_array_equal(found.values[name], value)


def test_a_caller_may_change_what_it_gave(model: Model):
    positions, wanted = [0, 1], np.array([[5], [6]])
    (expected,) = model.read([Request(IDS, [0, 1], LogProbabilities(np.array([[5], [6]])))])
    ids = np.array(IDS)
    computing, go_on = threading.Event(), threading.Event()

    def hold(original: Any) -> Any:
        def attention(*arguments: Any) -> None:
            computing.set()
            assert go_on.wait(many_callers.LONG_S)
            original(*arguments)

        return attention

    with estream.Scheduler(model) as scheduler, instead_of(model, "attention", hold):
        first = scheduler.submit([Request(TEXTS[0])])
        assert computing.wait(many_callers.LONG_S)
        ticket = scheduler.submit([Request(ids, positions, LogProbabilities(wanted))])
        ids[:], wanted[:], positions[:] = 1, 1, [2, 2]
        go_on.set()
        first.result()
        np.testing.assert_array_equal(ticket.result()[0].log_probabilities, expected.log_probabilities)


def test_progress_goes_through_the_layers_and_a_cancelled_sweep_leaves_a_usable_model(model: Model):
    shares: list[float] = []
    expected = model.prefill(IDS).logits
    layers = model.package.manifest.config.layers
    with estream.Scheduler(model) as scheduler:
        begun, go_on = threading.Event(), threading.Event()

        def watch(original: Any) -> Any:
            def attention(*arguments: Any) -> None:
                begun.set()
                assert go_on.wait(many_callers.LONG_S)
                shares.append(ticket.progress.share)
                if len(shares) == layers + 2:
                    ticket.cancel()
                original(*arguments)

            return attention

        with instead_of(model, "attention", watch):
            ticket = scheduler.submit([Request(IDS)])
            go_on.set()
            np.testing.assert_array_equal(ticket.result()[0].logits[0], expected)
            assert shares == [layer / (layers + 1) for layer in range(layers)]
            begun.clear()
            go_on.clear()
            ticket = scheduler.submit([Request(IDS)])
            assert begun.wait(many_callers.LONG_S)
            go_on.set()
            # The second layer withdraws it; the sweep ends there.
            np.testing.assert_array_equal(scheduler.read([Request(IDS)])[0].logits[0], expected)
        assert ticket.cancelled()
        assert len(shares) == 2 * layers + 2


def test_a_sweep_that_somebody_else_cancels_fails_its_requests(model: Model):
    cancelling = instead_of(model, "attention", lambda original: _cancelling(model, original))
    with estream.Scheduler(model) as scheduler, cancelling, pytest.raises(CancelledError):
        scheduler.read([Request(IDS)])


def _cancelling(model: Model, original: Any) -> Any:
    def attention(*arguments: Any) -> None:
        model.cancel()
        original(*arguments)

    return attention


def test_a_damaged_page_fails_those_who_needed_it(demo_copy: Package):
    with streaming(demo_copy) as model, estream.Scheduler(model) as scheduler:
        page = model.package.manifest.tape[2]
        with open(demo_copy.pages_path, "r+b") as file:
            file.seek(page.offset)
            kept = file.read(64)
            file.seek(page.offset)
            file.write(bytes(64))
        with pytest.raises(ReadError, match="wrong checksum"):
            scheduler.read([Request(list(range(40)))])
        with open(demo_copy.pages_path, "r+b") as file:
            file.seek(page.offset)
            file.write(kept)
        assert scheduler.read([Request(IDS)])[0].logits.shape[0] == 1


@pytest.mark.parametrize("kind", ["cancelled", "damaged"])
def test_a_failed_sweep_keeps_nothing_of_the_model_alive(demo_copy: Package, kind: str):
    before = many_callers.tasks()
    if kind == "damaged":
        flip(demo_copy.pages_path, demo_copy.manifest.tape[2].offset)
    # Without the collector only what nobody refers to is freed.
    gc.collect()
    gc.disable()
    try:
        model = streaming(demo_copy)
        with model, estream.Scheduler(model) as scheduler:
            assert many_callers.tasks() > before + 1
            with instead_of(model, "attention", lambda real: _cancelling(model, real) if kind == "cancelled" else real):
                ticket = scheduler.submit([Request(IDS)])
                kept = ticket.exception()
        assert type(kept) is (CancelledError if kind == "cancelled" else ReadError)
        assert kept.__traceback__ is not None
        assert many_callers.tasks_once_at_most(before) == before
    finally:
        gc.enable()


def test_what_can_never_be_read_is_refused_where_it_is_submitted(model: Model):
    with estream.Scheduler(model) as scheduler:
        with pytest.raises(PromptError, match="prompt 1 is empty"):
            scheduler.submit([Request(IDS), Request([])])
        with pytest.raises(PromptError, match="there is no prompt"):
            scheduler.submit([])
        with pytest.raises(BudgetError):
            scheduler.submit([Request(np.random.default_rng(i).integers(0, 2000, 500), ALL) for i in range(20_000)])


def test_a_closed_model_says_so(demo_package: Package):
    model = streaming(demo_package)
    with estream.Scheduler(model) as scheduler:
        model.close()
        with pytest.raises(StateError, match="closed"):
            scheduler.read([Request(IDS)])


def test_tasks_get_the_same_bits(model: Model):
    expected = [model.prefill(text).logits for text in TEXTS]

    async def ask(scheduler: Any) -> list[Any]:
        return await asyncio.gather(*(scheduler.aread([Request(text)]) for text in TEXTS))

    with estream.Scheduler(model) as scheduler:
        for (reading,), logits in zip(asyncio.run(ask(scheduler)), expected, strict=True):
            np.testing.assert_array_equal(reading.logits[0], logits)


def test_a_scheduler_that_nobody_closes_does_not_keep_a_program_alive(demo_package: Package):
    program = (
        "import estream, sys\n"
        "model = estream.load(sys.argv[1], memory='160MiB')\n"
        "scheduler = estream.Scheduler(model)\n"
        "scheduler.submit([estream.Request('chess ' * 1000)])\n"
        "print('ends')\n"
    )
    command = [sys.executable, "-c", program, str(demo_package.path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=many_callers.LONG_S)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ends\n", "")


class Scheduled(TextServices):
    """A model's services over a scheduler's sweeps."""

    def __init__(self, model: Model, scheduler: Any) -> None:
        self.prompts, self.about, self.fits, self.read = model.prompts, model.about, model.fits, scheduler.read

    prompts = about = fits = read = None


def test_services_work_over_a_scheduler(model: Model):
    labels = ["games", "net"]
    found: dict[str, Any] = {}
    with estream.Scheduler(model) as scheduler:
        services = Scheduled(model, scheduler)

        def ask(text: str) -> None:
            found[text] = services.classify(text, labels).to_json(), services.embed(text, pooling="mean").to_json()

        callers = [threading.Thread(target=ask, args=(text,)) for text in TEXTS]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    for text in TEXTS:
        assert found[text] == (model.classify(text, labels).to_json(), model.embed(text, pooling="mean").to_json())


@pytest.mark.parametrize(
    ("requests", "threads"), [(300, 10), pytest.param(10_000, 50, marks=pytest.mark.slow)], ids=["300", "10000"]
)
def test_every_answer_is_right_whatever_is_cancelled(demo_package: Package, requests: int, threads: int):
    command = [sys.executable, many_callers.__file__, demo_package.path, "--requests", requests, "--threads", threads]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    print(facts)
    assert facts["wrong"] == []
    assert facts["answered"] + facts["cancelled"] + facts["refused"] == requests
    assert facts["answered"] > requests / 2
    assert facts["cancelled"] > 0
    assert facts["sweeps"] < facts["answered"]
    assert facts["peak_bytes"] <= facts["budget_bytes"]
    assert facts["threads_left"] == 0
