"""The model of lm-evaluation-harness, beside the harness's own model ``hf`` on the weights that the package holds."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import text_tokenizers
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from paths import DEMO, ROOT
from reference import save_folder, state_dict
from tiny import FAMILIES, make_tiny
from transformers import OlmoeForCausalLM

from estream.conversion.convert import ConvertOptions, convert
from estream.errors import OptionError, PromptError
from estream.integrations.lm_eval import EstreamLM
from estream.integrations.lm_eval.asked import Asked, in_order
from estream.package.package import Package

pytestmark = pytest.mark.integrations

#: Tokens of the longest window here: borders are cheap to reach.
WINDOW = 48
#: This process holds both harnesses.
MEMORY = "4GiB"
#: Three families, each with a tokenizer of another kind.
TINY = {
    "mixtral": ("8 experts, grouped queries", "byte level"),
    "qwen3_moe": (None, "llama with bos"),
    "deepseek_v2": (None, "llama without"),
}


class Both:
    """A package read with float activations, and what ``hf`` makes of the same weights."""

    def __init__(self, package: Package, stored: Path) -> None:
        self.package, self.stored = package, stored
        self.ours = EstreamLM(str(package.path), memory=MEMORY, max_length=WINDOW, activations="float")
        # Its cache mistakes a continuation for another one that ends the same text and begins elsewhere.
        options = {"device": "cpu", "dtype": "float32", "max_length": WINDOW, "batch_size": 4}
        self.theirs = HFLM(str(stored), logits_cache=False, **options)


def _both(source: Path, folder: Path, family: str) -> Both:
    package = convert(source, folder / "made.estream", ConvertOptions(8, 32))
    config = FAMILIES[family].config.from_pretrained(source)
    config.tie_word_embeddings = False
    stored = folder / "stored"
    save_folder(stored, state_dict(package, source), config.to_json_string())
    for file in source.glob("tokenizer*"):
        (stored / file.name).write_bytes(file.read_bytes())
    return Both(package, stored)


@pytest.fixture(scope="module", params=["demo", *(pytest.param(name, marks=pytest.mark.slow) for name in TINY)])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp(request.param)
    source = folder / "source"
    if request.param == "demo":
        OlmoeForCausalLM.from_pretrained(DEMO, dtype="float32").save_pretrained(source)
        for file in DEMO.glob("tokenizer*"):
            (source / file.name).write_bytes(file.read_bytes())
        return _both(source, folder, "olmoe")
    shape, kind = TINY[request.param]
    shapes = FAMILIES[request.param].shapes
    make_tiny(source, request.param, shapes[shape or next(iter(shapes))] | {"vocab_size": 400})
    text_tokenizers.save(source, text_tokenizers.KINDS[kind]())
    return _both(source, folder, request.param)


def _instances(kind: str, *arguments: tuple[str, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, i, ("a task", i, 1)) for i, each in enumerate(arguments)]


def _same(ours: list[Any], theirs: list[Any]) -> None:
    np.testing.assert_allclose([a for a, _ in ours], [b for b, _ in theirs], rtol=1e-3, atol=2e-6)
    assert [bool(a) for _, a in ours] == [bool(b) for _, b in theirs]


def test_continuations_of_texts(both: Both):
    begin = both.theirs.tokenizer.decode(both.theirs.prefix_token_id)
    pairs = [
        ("what is a good day", " to say hello"),
        ("what is a good day ", "to say hello"),  # the space goes to the continuation
        ("Description: a web ser", "ver written in C"),  # merges with the context's last token
        ("", "hello world"),
        ("", f"{begin}hello world"),
        (f"{begin}hello", " world"),  # begun already
        ("  two  spaces, naïve café", " 你好\n\n"),
        ("hello " * 60, "world"),  # cut from the left
        ("hello", " hello" * 12),
        *[("the same context here", f" {word}") for word in ("a", "b", "hello", "b", "a b")],
    ]
    requests = _instances("loglikelihood", *pairs)
    _same(both.ours.loglikelihood(requests, True), both.theirs.loglikelihood(requests, True))


def test_lengths_at_the_border(both: Both):
    ids = np.random.default_rng(3).integers(10, 300, 3 * WINDOW).tolist()
    asked = [
        (("a", "b"), ids[: total - scored], ids[total - scored : total])
        for scored in (1, 7, WINDOW - 2)
        for total in (WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 2, 2 * WINDOW)
        if total > scored
    ] + [(("a", "b"), ids[:1], ids[1 : WINDOW + 1]), (("a", "b"), ids[:9], ids[9 : WINDOW + 9])]
    _same(both.ours._loglikelihood_tokens(asked, True), both.theirs._loglikelihood_tokens(asked, True))


def test_rolling_over_windows(both: Both):
    texts = ["hello", "what is a good day to say hello" * 2, "Description: hello world, say a good day\n" * 12]
    lengths = [len(both.ours.tok_encode(text)) for text in texts]
    assert lengths[0] < WINDOW < 2 * WINDOW < lengths[2]
    requests = _instances("loglikelihood_rolling", *((text,) for text in texts))
    found, expected = both.ours.loglikelihood_rolling(requests, True), both.theirs.loglikelihood_rolling(requests, True)
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("begin", [None, True, False])
def test_texts_become_the_same_ids(both: Both, begin: bool | None):
    options = {} if begin is None else {"add_bos_token": begin}
    ours = EstreamLM(str(both.package.path), memory=MEMORY, **options)
    theirs = HFLM(both.theirs.model, tokenizer=str(both.stored), **options)
    assert (ours.prefix_token_id, ours.eot_token_id) == (theirs.prefix_token_id, theirs.eot_token_id)
    assert ours.max_length == theirs.max_length
    for text in [*text_tokenizers.TEXTS, "<s>begun", "<|endoftext|>begun", "a b\n"]:
        for special in (None, False):
            assert ours.tok_encode(text, special) == theirs.tok_encode(text, special), (text, special)


def test_how_much_is_read_together_changes_nothing(demo_package: Package, packages: list[dict[str, str]]):
    words = sorted({row["section"] for row in packages})
    pairs = [(f"Description: {row['description'][:200]}\nSection:", f" {word}") for row in packages[:4] for word in words]
    requests = _instances("loglikelihood", *pairs)
    whole = EstreamLM(str(demo_package.path), memory=MEMORY).loglikelihood(requests, True)
    bounded = EstreamLM(str(demo_package.path), memory=MEMORY, batch_tokens=300)
    sizes, read = [], bounded._model.read
    bounded._model.read = lambda asked: (sizes.append(sum(len(each.prompt) for each in asked)), read(asked))[1]
    assert bounded.loglikelihood(requests, True) == whole
    assert len(sizes) > 1
    assert max(sizes) <= 300
    # Labels of one token behind one context are one prompt.
    assert sum(sizes) < len("".join(context for context, _ in pairs)) / 4


def test_the_longest_come_first_and_contexts_stay_together():
    rng = np.random.default_rng(0)
    contexts = [rng.integers(0, 99, n) for n in (5, 30, 12)]
    asked = [
        Asked(10 * c + n, np.concatenate([contexts[c], np.arange(n)]).astype(np.int32), n) for n in (1, 3, 2) for c in range(3)
    ]
    asked.append(Asked(99, np.concatenate([contexts[0], [7]]).astype(np.int32), 1))
    groups = [[each.index for each in group] for group in in_order(asked)]
    assert groups == [[13], [12], [11], [23], [22], [21], [3], [2], [1, 99]]


def _accuracy(model: Any, tasks: Path, task: str) -> float:
    found = simple_evaluate(
        model, tasks=[task], task_manager=TaskManager(include_path=str(tasks), include_defaults=False), bootstrap_iters=0
    )
    return found["results"][task]["acc,none"]


@pytest.mark.parametrize("task", ["some_sections", pytest.param("sections", marks=pytest.mark.slow)])
def test_eight_bits_are_as_right_as_the_checkpoint(demo_package_8bit: Package, tasks: Path, task: str, record_property):
    theirs = _accuracy(HFLM(str(DEMO), device="cpu", dtype="float32", batch_size=8), tasks, task)
    ours = _accuracy(EstreamLM(str(demo_package_8bit.path), memory=MEMORY), tasks, task)
    record_property("accuracy", {"estream": ours, "hf": theirs})
    assert theirs > 0.5
    assert abs(ours - theirs) <= 0.005


def test_the_command(demo_package: Package, tasks: Path, tmp_path: Path):
    command = [sys.executable, "-m", "estream.integrations.lm_eval", "run", "--model", "estream", "--model_args"]
    command += [f"pretrained={demo_package.path},memory=2GiB,threads=2", "--tasks", "some_sections", "descriptions"]
    command += ["--include_path", str(tasks), "--output_path", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    (file,) = tmp_path.rglob("results_*.json")
    found = json.loads(file.read_text())
    assert found["results"]["some_sections"]["acc,none"] > 0.5
    assert found["results"]["descriptions"]["word_perplexity,none"] > 1
    assert found["config"]["activations"] == "int8"


def test_the_entry_point_is_the_registered_model():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"]["lm_eval.models"].items()
    loaded = EntryPoint(name, value, "lm_eval.models").load()
    assert loaded is get_model("estream") is EstreamLM
    # lm-eval tells a name that stands for a module's object from another one by this.
    assert value == f"{loaded.__module__}:{loaded.__name__}"


def test_generation_is_refused_by_name(demo_package: Package):
    model = EstreamLM(str(demo_package.path), memory=MEMORY)
    with pytest.raises(OptionError, match="generate_until, which a task asks for, is not there"):
        model.generate_until(_instances("generate_until", ("a", "b")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "'dtype' is not known; known are pretrained, memory"),
        ({"max_length": 4096}, "max_length is 4096, the model's context is 2048"),
        ({"batch_tokens": 0}, "batch_tokens must be a whole number above 0, not 0"),
        ({"prefix_token_id": 8192}, "prefix_token_id is 8192, the vocabulary is 0..8191"),
        ({"add_bos_token": "maybe"}, "add_bos_token must be True or False, not 'maybe'"),
        ({"memory": "lots"}, "lots"),
    ],
)
def test_options_are_refused_by_name(demo_package: Package, options: dict[str, Any], message: str):
    with pytest.raises(OptionError, match=message):
        EstreamLM(str(demo_package.path), **{"memory": MEMORY} | options)


def test_what_cannot_be_scored_is_refused(demo_package: Package):
    model = EstreamLM(str(demo_package.path), memory=MEMORY, max_length=8)
    with pytest.raises(PromptError, match="the continuation 'b' is empty, or a part of the context's last token"):
        model._loglikelihood_tokens([(("a", "b"), [5], [])])
    with pytest.raises(PromptError, match="has 9 tokens, the longest window is 8"):
        model._loglikelihood_tokens([(("a", "b"), [5], [6] * 9)])
