"""Profiles, the search, plans, and the limits that they see."""

import json
import logging
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cgroup import estream_command, memory_group
from estream.configurator.watch import PredictionWatch
from simulated_machines import MB, OLMOE, GiB, MiB, constant, profile, setting

import estream
from estream.api.plan import planner, sweep_budgets
from estream.cli.plan import profile_path
from estream.configurator import configure, store
from estream.configurator.configure import Configured
from estream.configurator.profile import Profile, Storage, read_profile
from estream.configurator.search import choose, reading, usual_workloads
from estream.configurator.simulate import Simulator
from estream.configurator.simulated import Workload
from estream.engine.options import Configuration, LoadOptions
from estream.errors import BudgetError, OptionError
from estream.host import limits
from estream.host.sizes import KiB
from estream.package.package import Package


def test_the_search_is_deterministic_and_keeps_what_the_user_set():
    first = choose(setting(), profile(), {}, usual_workloads(setting()))
    assert choose(setting(), profile(), {}, usual_workloads(setting())) == first
    given = {"lanes": 3, "ring_bytes": 200 * MiB, "pinned_bytes": 0}
    chosen = choose(setting(), profile(), given, usual_workloads(setting())).chosen.configuration
    assert (chosen.lanes, chosen.ring_bytes, chosen.pinned_bytes) == (3, 200 * MiB, 0)


def test_memory_is_used_only_where_it_saves_time():
    computing = choose(setting(4 * GiB), profile(rate=1e12, seconds=5e-3), {}, [Workload.prompt(1024)]).chosen
    reading_ = choose(setting(4 * GiB), profile(rate=200 * MB, seconds=1e-4), {}, [Workload.prompt(1024)]).chosen
    assert computing.peak_bytes < GiB
    assert reading_.peak_bytes > 3 * GiB
    assert reading_.configuration.pinned_bytes is None


def test_the_chosen_configuration_is_no_slower_than_any_tried():
    s, p = setting(), profile(rate=800 * MB, seconds=1e-3)
    choice = choose(s, p, {}, [Workload.prompt(512)])
    simulator = Simulator(s, p)
    for ring in (64 * MiB, 256 * MiB):
        for pinned in (0, None):
            other = Configuration(**choice.chosen.configuration.to_json() | {"ring_bytes": ring, "pinned_bytes": pinned})
            fresh = simulator.predict(other, Workload.prompt(512)).ttft_s
            again = simulator.predict(other, Workload.prompt(512), repeated=True).ttft_s
            assert choice.chosen.cost_s <= (fresh + again) / 2 * 1.03


def test_lanes_and_requests_follow_the_storage_curve():
    flat = replace(profile().storage, rates={n: constant(MB * 1000) for n in (1, 2, 4, 8)})
    assert reading(replace(profile(), storage=flat), setting())["lanes"] == 4
    few = replace(profile().storage, rates={n: constant(MB * 1000 // n) for n in (1, 2, 4, 8)})
    assert reading(replace(profile(), storage=few), setting())["lanes"] == 1
    deep = Storage({n: constant(n * 300 * MB) for n in (1, 2, 4, 8)}, constant(1e-3))
    assert reading(replace(profile(), storage=deep), setting())["lanes"] == 8


def test_a_slow_disk_changes_the_plan():
    fast, slow = (choose(setting(2 * GiB), profile(rate=r * MB), {}, [Workload.prompt(1024)]).chosen for r in (8000, 100))
    assert fast.configuration != slow.configuration
    assert slow.peak_bytes > fast.peak_bytes


# Profiles


def test_a_profile_survives_its_file(tmp_path: Path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(profile().to_json()))
    assert read_profile(path) == profile()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": "other"}, "format"),
        ({"version": 2}, "version"),
        ({"kind": "guess"}, "kind"),
        ({"storage": {}}, "rates"),
        ({"storage": {"rates": {"x": [[1, 2]]}}}, "rates"),
        ({"storage": {"rates": {"1": [[4096, 0]]}, "embedding": [[1, 1]]}}, "rates.1"),
        ({"storage": {"rates": {"1": [[4096, 5]]}}}, "embedding"),
        ({"storage": {"rates": {"1": [[1, 5]]}, "embedding": [[1, 1]]}}, "4096"),
        ({"compute": []}, "compute"),
        ({"compute": {"product_ops_per_s": 0, "attention_ops_per_s": 1, "memory_bytes_per_s": 1}}, "product_ops_per_s"),
        ({"page_s": -1}, "page_s"),
        ({"page_s": True}, "page_s"),
        ({"process_bytes": None}, "process_bytes"),
    ],
)
def test_a_profile_without_sense_is_refused_by_its_key(tmp_path: Path, change: dict, named: str):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(profile().to_json() | change))
    with pytest.raises(OptionError, match=named):
        read_profile(path)


PHONES = ["galaxy-s25-npu", "oneplus-15r-npu", "sm8650-npu", "sm8750-npu", "sm8850-npu", "x-elite-npu"]


@pytest.mark.parametrize("name", PHONES)
def test_published_profiles_plan_a_phone(demo_package: Package, name: str):
    path = profile_path(name)
    phone = read_profile(path)
    assert phone.kind == "published"
    assert "nothing measured by estream" in phone.name
    for word in ("Storage", "Computing", "Assumed"):
        assert any(source.startswith(word) for source in phone.sources)
    plan = estream.plan(demo_package.path, device_profile=path, prompt_tokens=[64, 256])
    assert plan.budget_bytes == phone.memory_bytes
    assert [p.prompt_tokens for p in plan.predictions] == [64, 256]
    assert all(p.prediction.ttft_s > 0 for p in plan.predictions)


# On this machine


@pytest.fixture(scope="module")
def tuned(demo_package: Package) -> Profile:
    found, now = estream.tune(demo_package.path, force=True)
    assert now
    return found


def test_a_measured_profile_is_kept_and_found_again(demo_package: Package, tuned: Profile):
    again, now = estream.tune(demo_package.path)
    assert not now
    assert again == read_profile(store.path_of(tuned.key))
    _, forced = estream.tune(demo_package.path, force=True)
    assert forced


def test_a_damaged_profile_is_said_and_measured_again(demo_package: Package, tuned: Profile, caplog):
    path = store.path_of(tuned.key)
    path.write_text("{")
    _, now = estream.tune(demo_package.path)
    assert now
    assert str(path) in caplog.text


def test_other_threads_are_another_machine(demo_package: Package, tuned: Profile):
    other, now = estream.tune(demo_package.path, threads=1)
    assert now
    assert other.key["threads"] == 1
    assert store.path_of(other.key) != store.path_of(tuned.key)


def test_a_model_uses_the_profile_and_says_so(demo_package: Package, tuned: Profile):
    budget = limits.resident_bytes() + 200 * MiB
    plan = estream.plan(demo_package.path, memory=budget)
    with estream.load(demo_package.path, memory=budget) as model:
        config = model.prefill([1, 2, 3]).stats.config
    for name, value in plan.configuration.to_json().items():
        assert config[name] == pytest.approx(value) or name in ("ring_bytes", "pinned_bytes")


def test_probing_stays_in_the_budget(demo_package: Package):
    with memory_group(220 * MiB) as group:
        run = group.run(estream_command("tune", demo_package.path, "--memory", "200MiB", "--force", "--json"))
        assert run.returncode == 0, run.stderr
        assert group.peak_bytes < 220 * MiB
    assert json.loads(run.stdout)["measured_now"]


def test_a_large_package_is_measured_at_its_first_load(demo_package: Package, monkeypatch, tmp_path: Path, caplog):
    monkeypatch.setenv("ESTREAM_CACHE", str(tmp_path))
    monkeypatch.setattr(configure, "PROBED_BYTES", 0)
    caplog.set_level(logging.INFO, "estream")
    for _ in range(2):
        with estream.load(demo_package.path):
            pass
    assert caplog.text.count("measuring this machine") == 1
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_a_cache_that_cannot_be_written_is_said(demo_package: Package, monkeypatch, tmp_path: Path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESTREAM_CACHE", str(tmp_path / "file"))
    _, now = estream.tune(demo_package.path)
    assert now
    assert "ESTREAM_CACHE" in caplog.text


def test_two_wrong_predictions_have_the_machine_measured_again(demo_package: Package, tuned: Profile, caplog):
    store.keep(tuned)
    configured = Configured(Configuration(), profile(), None, tuned.key, Simulator(setting(), profile()))
    watch = PredictionWatch(configured)
    right = watch.observe(Workload.prompt(64), 1.5, repeated=False)
    assert right is not None
    for _ in range(3):
        watch.observe(Workload.prompt(64), max(1.0, right), repeated=False)
    assert store.find(tuned.key) is not None
    watch.observe(Workload.prompt(64), 1.0 + 2 * right, repeated=False)
    assert store.find(tuned.key) is not None
    watch.observe(Workload.prompt(64), 1.0 + 2 * right, repeated=False)
    assert store.find(tuned.key) is None
    assert "measures this machine again" in caplog.text
    store.keep(tuned)


# Plans


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
    floor = ready.setting(GiB).floor(Workload.prompt(1)).bytes
    plan = ready.plan(floor, [1, demo_package.manifest.config.context])
    first, last = plan.predictions
    assert first.prediction is not None
    assert last.prediction is None
    assert last.floor_bytes > floor
    with pytest.raises(OptionError, match="context"):
        ready.plan(GiB, [10**6])


def test_more_memory_is_never_predicted_to_be_much_slower(demo_package: Package, tuned: Profile):
    rows = sweep_budgets(planner(demo_package.path, LoadOptions()), 128, steps=6)
    assert [budget for budget, _ in rows] == sorted(budget for budget, _ in rows)
    times = [plan.choice.chosen.cost_s for _, plan in rows]
    assert all(later <= earlier * 1.05 for earlier, later in pairwise(times))


# The command line


def test_plan_and_tune_refuse_wrong_usage_in_one_line(demo_package: Package, tmp_path: Path):
    for arguments in (
        ["--prompt-tokens", "x"],
        ["--prompt-tokens", "0"],
        ["--prompt-tokens", "99999"],
        ["--memory", "much"],
        ["--plot", tmp_path / "a.png"],
        ["--device-profile", "no-such-phone"],
        ["--lanes", "0"],
        ["--request", "5000"],
    ):
        run = subprocess.run(
            estream_command("plan", demo_package.path, *arguments), capture_output=True, text=True, check=False
        )
        assert run.returncode == 2, run.stderr
        assert run.stderr.count("\n") <= 12
        assert "Traceback" not in run.stderr


def test_tune_prints_what_it_measured(demo_package: Package):
    for words in ("measured now", "kept; --force measures again"):
        run = subprocess.run(
            estream_command("tune", demo_package.path, *(["--force"] if words == "measured now" else [])),
            capture_output=True,
            text=True,
            check=True,
        )
        assert words in run.stdout
        for part in ("4 lanes", "expert page", "full attention page", "while reading", "kept in"):
            assert part in run.stdout


def test_a_plan_is_printed_with_its_reasons(demo_package: Package):
    command = estream_command("plan", demo_package.path, "--memory", "300MiB", "--explain")
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for part in ("TTFT", "limit", "predictions", "origin", "measured", "policy", "given", "runner-up"):
        assert part in text


def test_a_budget_sweep_is_drawn(demo_package: Package, tmp_path: Path):
    picture = tmp_path / "knee.png"
    command = estream_command("plan", demo_package.path, "--budget-sweep", "--prompt-tokens", "128", "--plot", picture)
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert text.count("#") > 10


def test_sizes_in_tests_are_what_they_seem():
    assert KiB * 1024 == MiB
    assert len(OLMOE.tape) > 1000
    assert np.isfinite(profile().storage.rate(3, MiB))
