"""A prompt is followed from text to logits: it passes the files that docs/design.md lists, in that order, each entered once."""

import re
import sys
from pathlib import Path

import pytest
from paths import ROOT

import estream
from estream.api.model import Model
from estream.engine.options import LoadOptions
from estream.package.package import Package

SOURCES = Path(estream.__file__).parent
#: The step that each file of the list stands for.
STEPS = {
    "api/model.py": "Model.prefill_batch",
    "engine/batch.py": "make_batch",
    "text/tokenizer.py": "TextTokenizer.ids",
    "engine/memory.py": "ModelMemory.check",
    "engine/sweep_plan.py": "plan_sweep",
    "engine/schedule.py": "plan_reading",
    "engine/embedding.py": "EmbeddingReader.__init__",
    "engine/sweep.py": "Sweep.run",
    "engine/pager.py": "Pager.begin",
    "engine/reads.py": "Reads.wait",
    "devices/cpu/device.py": "CpuDevice.begin_sweep",
    "devices/cpu/attention.py": "CpuAttention.run",
    "devices/cpu/page.py": "CpuLinear.normalise",
    "devices/cpu/mlp.py": "CpuMlp.route",
}
PLANNING = ("make_batch", "ModelMemory.check", "plan_sweep", "plan_reading", "EmbeddingReader.__init__")
#: Values and tables beside the way: docs/design.md.
BESIDE = (
    "models/",
    "package/",
    "host/",
    "engine/activations.py",
    "devices/cpu/activations.py",
    "devices/opening.py",
    "engine/routing.py",
    "engine/wanted.py",
    "engine/prefixes.py",
    "engine/branch_layout.py",
    "engine/head.py",
    "engine/head_plan.py",
    "engine/reduction.py",
    "devices/cpu/head.py",
    "engine/use.py",
    "configurator/use_store.py",
    "engine/workspace.py",
    "engine/slots.py",
    "engine/ring.py",
    "engine/options.py",
    "engine/finite.py",
    "configurator/estimates.py",
    "api/batch_calls.py",
    "api/result.py",
    "text/quiet.py",
    "text/pieces.py",
    "text/splitting.py",
)


@pytest.fixture(scope="module")
def calls(demo_package: Package) -> list[tuple[str, str]]:
    """Every call of a function of estream during one prefill: file and qualified name."""
    found: list[tuple[str, str]] = []

    def note(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCES):
            found.append((path.relative_to(SOURCES).as_posix(), frame.f_code.co_qualname))

    with Model(demo_package, LoadOptions(ring_bytes=0, pinned_bytes=0)) as model:
        sys.setprofile(note)
        try:
            model.prefill("Description: A web server written in C\nSection:")
        finally:
            sys.setprofile(None)
    return found


def test_the_list_in_the_documents_is_the_way_that_a_prompt_takes(calls: list[tuple[str, str]]):
    rows = re.findall(r"^\| (\d+) \| `([\w/]+\.py)`", (ROOT / "docs/design.md").read_text(), re.MULTILINE)
    assert [(int(number), path) for number, path in rows] == list(enumerate(STEPS, 1))
    assert len(rows) <= 14
    first = [calls.index((path, step)) for path, step in STEPS.items()]
    assert first == sorted(first)


def test_nothing_is_planned_again_once_the_sweep_runs(calls: list[tuple[str, str]]):
    names = [name for _, name in calls]
    for step in PLANNING:
        assert names.count(step) == 1, step
        assert names.index(step) < names.index("Sweep.run"), step


def test_every_other_file_is_known_to_lie_beside_the_way(calls: list[tuple[str, str]]):
    others = {path for path, _ in calls} - set(STEPS)
    assert {path for path in others if not path.startswith(BESIDE)} == set()
