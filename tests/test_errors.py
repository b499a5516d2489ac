"""Errors reach other processes whole."""

import inspect
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from estream import errors

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.EstreamError)]


def _made(kind: type[errors.EstreamError]) -> errors.EstreamError:
    return kind("what failed", 7) if kind in (errors.BudgetError, errors.QueueFullError) else kind("what failed")


def _fail(kind: type[errors.EstreamError]) -> None:
    raise _made(kind)


def test_every_error_is_listed():
    assert {kind.__name__ for kind in KINDS} == set(errors.__all__)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_go_through_pickle(kind: type[errors.EstreamError]):
    made = _made(kind)
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is kind
    assert str(again) == "what failed"
    assert vars(again) == vars(made)


def test_errors_come_out_of_a_process_pool():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for kind in KINDS:
            with pytest.raises(kind, match="what failed") as raised:
                pool.submit(_fail, kind).result(120)
            assert type(raised.value) is kind
        with pytest.raises(errors.BudgetError) as raised:
            pool.submit(_fail, errors.BudgetError).result(120)
        assert raised.value.floor_bytes == 7
