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
    assert all(p.estimate.ttft_s > 0 for p in plan.predictions)
