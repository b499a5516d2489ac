"""A loaded model: calls from several threads, after closing, in a forked child."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
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


def test_closed_and_forked_models_say_so(tiny_package):
    model = estream.load(tiny_package.path)
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
