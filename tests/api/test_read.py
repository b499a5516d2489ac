"""What is wanted of positions, reduced while head pages pass, is what the whole logits say, whoever asks beside."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from budgets import budget
from loaded import instead_of

import estream
from estream.api.model import Model
from estream.api.result import Reading
from estream.devices.cpu import activations, head
from estream.engine.batch import Batch
from estream.engine.options import LoadOptions
from estream.engine.wanted import ALL, Among, Hidden, Likeliest, Logits, LogProbabilities, Request, Wanted
from estream.errors import NumericError, OptionError, PromptError

IDS = [(7 * i * i + 3 * i) % 330 for i in range(90)]
#: The next token of every position, and its first successor.
NEXT = np.array([[b, (b + 1) % 330] for _, b in pairwise([*IDS, 5])])
#: float32 results of float64 sums of float32 exponentials.
CLOSE = 1e-6


@pytest.fixture(scope="module")
def model(tiny_package) -> Iterator[Model]:
    with estream.load(tiny_package.path) as model:
        yield model


@pytest.fixture(scope="module")
def logits(model: Model) -> np.ndarray:
    return model.prefill(IDS, positions=range(len(IDS))).logits


@pytest.fixture(scope="module")
def expected(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities float64 [positions, vocabulary]."""
    return torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()


def one(model: Model, wanted: Wanted, positions=ALL) -> Reading:
    return model.read([Request(IDS, positions, wanted)])[0]


def test_logits(model: Model, logits: np.ndarray):
    np.testing.assert_array_equal(one(model, Logits()).logits, logits)
    np.testing.assert_array_equal(one(model, Logits(), None).logits, logits[-1:])
    np.testing.assert_array_equal(one(model, Logits(), [5, 3, 5]).logits, logits[[5, 3, 5]])


@pytest.mark.parametrize("count", [1, 7, 330])
def test_the_likeliest(model: Model, logits: np.ndarray, expected: np.ndarray, count: int):
    found = one(model, Likeliest(count))
    order = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(found.ids, order)
    np.testing.assert_allclose(found.log_probabilities, np.take_along_axis(expected, order, 1), atol=CLOSE)


def test_log_probabilities(model: Model, expected: np.ndarray):
    found = one(model, LogProbabilities(NEXT))
    np.testing.assert_allclose(found.log_probabilities, np.take_along_axis(expected, NEXT, 1), atol=CLOSE)
    found = one(model, LogProbabilities(NEXT[:2, :1]), [0, 1])
    np.testing.assert_allclose(found.log_probabilities, np.take_along_axis(expected, NEXT, 1)[:2, :1], atol=CLOSE)


def test_probabilities_among_some_ids(model: Model, logits: np.ndarray):
    found = one(model, Among((329, 4, 17)))
    np.testing.assert_array_equal(found.logits, logits[:, [329, 4, 17]])
    softmax = torch.softmax(torch.from_numpy(found.logits).double(), -1).numpy()
    np.testing.assert_allclose(found.probabilities, softmax, rtol=CLOSE)


def test_hidden_states_are_what_the_head_multiplies(model: Model, logits: np.ndarray):
    found = one(model, Hidden())
    rank = np.linalg.matrix_rank(np.c_[found.hidden, np.ones(len(IDS))])
    # The head is linear in them, up to quantising its inputs.
    weights, *_ = np.linalg.lstsq(found.hidden, logits, rcond=None)
    assert rank > 50
    assert np.abs(found.hidden @ weights - logits).max() < 0.05 * np.abs(logits).max()
    np.testing.assert_array_equal(one(model, Hidden(mean=True)).hidden, found.hidden.mean(0, np.float64).astype(np.float32))
    some = one(model, Hidden(mean=True), [3, 80]).hidden
    np.testing.assert_array_equal(some, found.hidden[[3, 80]].mean(0, np.float64).astype(np.float32))


#: Requests of every kind, some of the same prompt.
REQUESTS = [
    Request(IDS, ALL, Likeliest(3)),
    Request(IDS[:40], [7, 39], Logits()),
    Request(IDS[:17], ALL, Hidden(mean=True)),
    Request(IDS[:40], None, Among((3, 200))),
    Request(IDS, ALL, LogProbabilities(NEXT)),
    Request(IDS[1:60], [0, 5], Hidden()),
    Request(IDS[1:60], None, Likeliest(12)),
    Request(IDS[5:20], ALL, Among((3, 200))),
    Request(IDS[5:20], [1, 2], Among((201, 9, 3))),
    Request(IDS[:40], ALL, Hidden(mean=True)),
]


@pytest.fixture(scope="module")
def alone(model: Model) -> list[Reading]:
    return [model.read([request])[0] for request in REQUESTS]


@pytest.mark.parametrize("tile", [1, 16, 256])
@pytest.mark.parametrize("order", [range(10), range(9, -1, -1), [3, 7, 3], [2, 4], [8, 7, 1]], ids=str)
def test_each_gets_the_bits_that_it_gets_alone(tiny_package, alone, order, tile: int, monkeypatch: pytest.MonkeyPatch):
    for module in (activations, head):
        monkeypatch.setattr(module, "HEAD_ROWS", tile)
    requests = [REQUESTS[i] for i in order]
    with Model(tiny_package, LoadOptions(budget(tiny_package, [r.prompt for r in requests], 4 << 20), 3)) as model:
        for index, found in zip(order, model.read(requests), strict=True):
            assert found.values.keys() == alone[index].values.keys()
            for name, values in found.values.items():
                np.testing.assert_array_equal(values, alone[index].values[name])


def test_only_the_head_pages_that_somebody_needs_are_read(demo_package):
    with Model(demo_package, LoadOptions(None, 1, ring_bytes=0, pinned_bytes=0)) as model:
        for wanted, read in ((Likeliest(1), True), (Among((1,)), True), (Hidden(), False)):
            order = model._plan(Batch.of([IDS], wanted=[wanted])).schedule.order
            assert any(page.spec.kind == "head" for page in order) == read
            assert model.read([Request(IDS, None, wanted)])[0].stats.bytes_read > 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("wanted", [Logits(), Likeliest(2), LogProbabilities(NEXT[:1]), Among((1, 2)), Hidden()], ids=str)
def test_what_is_no_number_is_refused(model: Model, wanted: Wanted, value: float):
    def poison(original):
        def mlp_or_experts(pages):
            original(pages)
            if pages[0][0].layer == model.package.manifest.config.layers - 1:
                model._device._residual[-1, 5] = value

        return mlp_or_experts

    with instead_of(model, "experts", poison), pytest.raises(NumericError, match="the last layer or the head gives"):
        one(model, wanted, None)
    one(model, wanted, None)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(IDS, None, Likeliest(0)), "the 0 likeliest tokens are wanted, possible are 1 to 330"),
        (Request(IDS, None, Likeliest(331)), "possible are 1 to 330"),
        (Request(IDS, None, LogProbabilities(NEXT)), r"here \[1, one or more\]; found \[90, 2\]"),
        (Request(IDS, None, LogProbabilities(np.zeros((1, 0), int))), r"found \[1, 0\]"),
        (Request(IDS, None, LogProbabilities(np.array([[330]]))), r"id 330 is wanted, the vocabulary is 0\.\.329"),
        (Request(IDS, None, LogProbabilities(np.array([[0.5]]))), "must be whole numbers"),
        (Request(IDS, None, Among(())), "must be one or more, and differ"),
        (Request(IDS, None, Among((1, 1))), "must be one or more, and differ"),
        (Request(IDS, None, Among((-1,))), "id -1 is wanted"),
        (Request(IDS, "some", Logits()), "must be whole numbers, 'all' or None, found 'some'"),
    ],
)
def test_what_cannot_be_is_refused_at_the_door(model: Model, request_: Request, message: str):
    with pytest.raises(PromptError, match=message):
        model.read([request_])


def test_a_reading_says_what_it_has(model: Model):
    with pytest.raises(OptionError, match="a reading of Among has no 'hidden', but logits, probabilities"):
        _ = one(model, Among((1,))).hidden
