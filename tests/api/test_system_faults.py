"""End to end: reads that the system fails, cuts short or interrupts are survived, or named, and leave a usable model."""

import json
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from preloaded import FAULTY_READS, build, run_behind

from estream.package.package import Package

#: For each kind of fault: one read in how many, and what the error says where there is one.
CASES = [
    ("eio", 20, "the system could not read it (Input/output error)"),
    ("eio", 1, "the system could not read it (Input/output error)"),
    ("end", 20, "the file ends before the page does"),
    ("end", 3, "the file ends before the page does"),
    ("eintr", 2, None),
    ("eintr", 9, None),
    ("short", 2, None),
    ("short", 7, None),
    ("odd", 3, None),
    ("odd", 8, None),
]

PROGRAM = """
import ctypes, json, os, sys, numpy as np, estream
sys.path.insert(0, sys.argv[4])
from demo_answers import IDS, streaming
from estream.package.package import open_package
faults_made = ctypes.CDLL(None).faults_made
threads = lambda: len(os.listdir("/proc/self/task"))
package, before = open_package(sys.argv[1]), threads()
for fault, every, _ in json.loads(sys.argv[3]):
    os.environ |= {"FAULT": fault, "FAULT_EVERY": str(every)}
    with streaming(package) as model:
        try:
            model.prefill(IDS)
            answer = "answered"
        except estream.errors.ReadError as error:
            answer = str(error)
        made = faults_made()
        del os.environ["FAULT"]
        np.save(f"{sys.argv[2]}/{fault}-{every}.npy", model.prefill(IDS).logits)
    print(json.dumps({"answer": answer, "faults": made, "threads_left": threads() - before}))
"""


@pytest.fixture(scope="module")
def outcomes(demo_package: Package, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict[str, Any]]:
    """What each case came to, in one process behind the faulty system, and the logits once the system was whole again."""
    folder = tmp_path_factory.mktemp("faults")
    arguments = (demo_package.path, folder, json.dumps(CASES), ROOT / "tests/support")
    lines = run_behind(build(FAULTY_READS, folder), PROGRAM, *arguments).splitlines()
    found = zip(CASES, map(json.loads, lines), strict=True)
    return {(f, n): facts | {"logits": np.load(folder / f"{f}-{n}.npy")} for (f, n, _), facts in found}


@pytest.mark.parametrize(("fault", "every", "message"), CASES)
def test_faults_of_the_system_are_survived_or_named(fault, every, message, outcomes, demo_package, demo_logits):
    outcome = outcomes[fault, every]
    assert outcome["faults"] > 0
    if message is None:
        assert outcome["answer"] == "answered"
    else:
        assert outcome["answer"].startswith(f"{demo_package.path}/")
        assert message in outcome["answer"]
    np.testing.assert_array_equal(outcome["logits"], demo_logits)
    assert outcome["threads_left"] == 0
