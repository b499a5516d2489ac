"""A loaded model: calls from several threads, after closing, in a forked child."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from loaded import instead_of
from tiny_answers import PROMPTS

import estream
from estream.errors import StateError


def test_calls_from_several_threads_queue(tiny_package, tiny_logits):
    results: dict[int, np.ndarray] = {}
    with estream.load(tiny_package.path) as model:

        def work(index: int) -> None:
            results[index] = model.prefill(PROMPTS[index]).logits

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for index, expected in enumerate(tiny_logits):
        np.testing.assert_array_equal(results[index], expected)


def test_a_forked_child_closes_and_ends_by_itself(tiny_package):
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
    run = subprocess.run(
        [sys.executable, "-c", program, tiny_package.path], capture_output=True, text=True, check=True, timeout=60
    )
    assert (run.stdout, run.stderr) == ("7 (330,)\n", "")


#: What a model is asked for; each needs what closing frees and a fork loses.
USES = {
    "prefill": lambda model: model.prefill([1]),
    "prefill_batch": lambda model: model.prefill_batch([[1], [2]]),
    "record": lambda model: model.record().__enter__(),
    "arena_bytes": lambda model: model.arena_bytes,
    "device_seconds": lambda model: model.device_seconds(),
}
USES_OF_ALL = ["prefill", "prefill_batch", "record", "arena_bytes", "device_seconds"]


@pytest.mark.parametrize("use", USES_OF_ALL)
def test_a_closed_model_says_so(use: str, tiny_package):
    model = estream.load(tiny_package.path)
    model.close()
    model.close()
    model.cancel()
    with pytest.raises(StateError, match="this model is closed; load it again"):
        USES[use](model)


@pytest.mark.parametrize("use", USES_OF_ALL)
def test_a_model_in_a_forked_child_says_so(use: str, tiny_package, tiny_logits):
    with estream.load(tiny_package.path, threads=1) as model:
        child = os.fork()
        if child == 0:
            os._exit(_refused_for_a_fork(lambda: USES[use](model)))
        assert _exit_status(child) == 0
        np.testing.assert_array_equal(model.prefill(PROMPTS[2]).logits, tiny_logits[2])


def test_a_child_forked_in_the_middle_of_a_sweep_is_refused_and_does_not_wait(tiny_package, tiny_logits):
    """The lock that the other thread holds is held in the child for ever."""
    computing, forked, answers = threading.Event(), threading.Event(), []

    def wait_for_the_fork(original):
        def experts(pages):
            computing.set()
            assert forked.wait(60)
            original(pages)

        return experts

    with estream.load(tiny_package.path, threads=1) as model, instead_of(model, "experts", wait_for_the_fork):
        thread = threading.Thread(target=lambda: answers.append(model.prefill(PROMPTS[2]).logits))
        thread.start()
        assert computing.wait(60)
        child = os.fork()
        if child == 0:
            os._exit(_refused_for_a_fork(lambda: model.prefill([1])))
        status = _exit_status(child)
        forked.set()
        thread.join()
    assert status == 0
    np.testing.assert_array_equal(answers[0], tiny_logits[2])


def _refused_for_a_fork(use: Callable[[], object]) -> int:
    """In a child, whose exceptions reach nobody: 0 where this is refused because of the fork."""
    try:
        use()
    except StateError as error:
        return 0 if "does not survive a fork" in str(error) else 1
    except BaseException:
        return 2
    return 3


def _exit_status(child: int, seconds: float = 5.0) -> int:
    """The child's exit status; a child that hangs is killed."""
    deadline = time.monotonic() + seconds
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.005)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended[1])
