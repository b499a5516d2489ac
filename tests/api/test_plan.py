"""What would run, predicted and explained."""

from itertools import pairwise

import pytest
from simulated_machines import GiB, MiB

import estream
from estream.api.plan import planner, sweep_budgets
from estream.configurator.profile import Profile
from estream.engine.batch import BatchShape
from estream.engine.options import LoadOptions
from estream.errors import BudgetError, OptionError
from estream.host import limits
from estream.package.package import Package


def test_a_plan_predicts_explains_and_stays_in_the_budget(demo_package: Package, tuned: Profile):
    budget = limits.resident_bytes() + 200 * MiB
    plan = estream.plan(demo_package.path, memory=budget, prompt_tokens=[32, 256])
    facts = plan.to_json()
    for prediction in facts["predictions"]:
        keys = {"prompt_tokens", "ttft_s", "peak_bytes", "floor_bytes", "bytes_read", "limit", "repeat_ttft_s", "stall_s"}
        assert keys <= set(prediction)
        assert prediction["peak_bytes"] <= budget
        assert prediction["limit"] in ("read", "compute")
    origins = {row["origin"] for row in facts["explanation"]}
    assert origins == {"measured", "derived", "policy", "given"}
    given = planner(demo_package.path, LoadOptions(budget, lanes=3)).plan(budget)
    assert next(row for row in given.explained if row.name == "lanes").origin == "given"


def test_a_budget_below_the_floor_is_refused_and_a_long_prompt_says_what_it_needs(demo_package: Package, tuned: Profile):
    with pytest.raises(BudgetError, match="floor"):
        estream.plan(demo_package.path, memory="20MiB")
    ready = planner(demo_package.path, LoadOptions())
    floor = ready.memory(GiB).floor(BatchShape.of_prompt(1)).bytes
    plan = ready.plan(floor, [1, demo_package.manifest.config.context])
    first, last = plan.predictions
    assert first.estimate is not None
    assert last.estimate is None
    assert last.floor_bytes > floor
    with pytest.raises(OptionError, match="context"):
        ready.plan(GiB, [10**6])


def test_more_memory_is_never_predicted_to_be_much_slower(demo_package: Package, tuned: Profile):
    rows = sweep_budgets(planner(demo_package.path, LoadOptions()), 128, steps=6)
    assert [budget for budget, _ in rows] == sorted(budget for budget, _ in rows)
    times = [plan.search.chosen.cost_s for _, plan in rows]
    assert all(later <= earlier * 1.05 for earlier, later in pairwise(times))
