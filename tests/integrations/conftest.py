"""Local tasks of the held-out packages, and models as both harnesses load them."""

import json
from pathlib import Path

import pytest
from paths import HELD_OUT


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Both harnesses are large, and installed only where they are asked for by their marker."""
    asked = config.getoption("markexpr").replace("not integrations", "")
    return None if "integrations" in asked else True


@pytest.fixture(scope="session", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory):
    """Nothing is fetched, and no cache of the user's is used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hugging face")))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield


@pytest.fixture(scope="session")
def packages() -> list[dict[str, str]]:
    """Held-out descriptions with their sections."""
    return [json.loads(line) for line in HELD_OUT.read_text().splitlines()]


@pytest.fixture(scope="session")
def tasks(packages: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tasks: which section a package belongs to, 200 short ones of them, and the perplexity of 20 descriptions."""
    folder = tmp_path_factory.mktemp("tasks")
    sections = sorted({row["section"] for row in packages})
    found = [
        {"description": row["description"], "sections": sections, "label": sections.index(row["section"])} for row in packages
    ]
    short = [row | {"description": row["description"][:160]} for row in found[::2]]
    for name, rows in (("all", found), ("some", short), ("few", found[:20])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, rows in (("sections", "all"), ("some_sections", "some")):
        (folder / f"{name}.yaml").write_text(
            _head(name, folder / f"{rows}.jsonl") + "output_type: multiple_choice\n"
            'doc_to_text: "Description: {{description}}\\nSection:"\ndoc_to_target: label\ndoc_to_choice: "{{sections}}"\n'
            "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
        )
    (folder / "descriptions.yaml").write_text(
        _head("descriptions", folder / "few.jsonl") + "output_type: loglikelihood_rolling\n"
        'doc_to_text: ""\ndoc_to_target: "{{description}}"\n'
        "metric_list: [{metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}]\n"
    )
    return folder


def _head(name: str, rows: Path) -> str:
    return f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {rows}}}}}\ntest_split: test\n"
