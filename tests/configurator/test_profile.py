"""Profiles of machines, as files."""

import json
from pathlib import Path

import pytest
from simulated_machines import profile

import estream
from estream.cli.plan import profile_path
from estream.configurator.profile import read_profile
from estream.errors import OptionError
from estream.package.package import Package


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
        ({"process_bytes": 1.5}, "process_bytes"),
        ({"page_s": float("nan")}, "page_s"),
        ({"page_s": float("inf")}, "page_s"),
        ({"storage": {"rates": {"1": [[4096, "x"]]}, "embedding": [[1, 1]]}}, r"'storage.rates.1\[0\]\[1\]' must be float"),
        ({"storage": {"rates": {"1": [[4096, 5]]}, "embedding": [[1, 1]], "compute_slowdown": 0}}, "compute_slowdown"),
        ({"storage": {"rates": {"1": [[4096, 5]]}, "embedding": [[1, 1]], "read_slowdown": 1e9}}, "read_slowdown"),
        ({"compute": {"attention": {"full": [[1, 1]]}}}, "'compute.last_attention' is missing"),
        ({"more": 1}, "'more' is not known"),
    ],
)
def test_a_profile_without_sense_is_refused_by_its_key(tmp_path: Path, change: dict, named: str):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(profile().to_json() | change))
    with pytest.raises(OptionError, match=named):
        read_profile(path)


def test_whole_numbers_may_have_an_exponent(tmp_path: Path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(profile().to_json()).replace(str(60 << 20), "6e7"))
    assert read_profile(path).process_bytes == 60_000_000


def test_a_profile_that_is_no_file_or_too_deep_is_refused(tmp_path: Path):
    path = tmp_path / "p.json"
    path.write_text("[" * 10**5)
    with pytest.raises(OptionError, match="nested too deeply"):
        read_profile(path)
    with pytest.raises(OptionError, match="/dev/zero: cannot be read .not a regular file"):
        read_profile(Path("/dev/zero"))


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
    assert all(p.estimate.ttft_s > 0 for p in plan.predictions)
