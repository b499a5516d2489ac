"""Labels behind a prompt: the tree against scoring each, normalisation, prior, and the held-out packages."""

import numpy as np
import pytest
import torch
from demo_scores import Scores
from transformers import PreTrainedModel

from estream.api.model import Model
from estream.errors import OptionError, PromptError

TEMPLATE = "Description: {text}\nSection: "
#: Share of the 400 packages by which labels may differ from transformers in float32.
ACCURACY = 0.01


@pytest.fixture(scope="module")
def sections(packages) -> list[str]:
    return sorted({row["section"] for row in packages})


def test_a_tree_gives_what_scoring_each_label_gives(model: Model, packages, sections):
    text = packages[3]["description"]
    found = model.classify(text, sections, template=TEMPLATE)
    each = model.score([(f"Description: {text}\nSection: ", section) for section in sections])
    # "lib" is no label, so no label here begins another.
    np.testing.assert_allclose([label.logprob for label in found.labels], [score.logprob for score in each], atol=1e-6)
    chances = np.exp([score.logprob for score in each])
    assert found.outside == pytest.approx(1 - chances.sum(), abs=1e-5)
    np.testing.assert_allclose([label.probability for label in found.labels], chances / chances.sum(), rtol=1e-4)
    assert found.label == sections[int(chances.argmax())]
    assert found.probability == max(label.probability for label in found.labels)


def test_labels_that_start_alike_exclude_each_other(model: Model):
    labels = ["x11", "x", "games", "games and more"]
    found = model.classify("A window manager", labels, template=TEMPLATE)
    total = sum(np.exp(label.logprob) for label in found.labels)
    assert total + found.outside == pytest.approx(1, abs=1e-6)
    alone = model.classify("A window manager", ["games"], template=TEMPLATE).labels[0].logprob
    assert found.labels[2].logprob < alone


def test_the_same_bits_alone_and_together(model: Model, packages, sections):
    texts = [row["description"] for row in packages[:12]]
    together = model.classify(texts, sections, template=TEMPLATE, truncate=True)
    for text, found in zip(texts[::-1], together[::-1], strict=True):
        assert model.classify(text, sections, template=TEMPLATE, truncate=True).labels == found.labels


def test_normalisation_and_prior(model: Model):
    labels = ["games", "gnustep", "x11"]
    plain = model.classify("chess", labels, template=TEMPLATE)
    sums = np.array([label.logprob for label in plain.labels])
    tokens = [len(model.score((TEMPLATE, label)).tokens) for label in labels]
    neutral = np.array([label.logprob for label in model.classify("", labels, template=TEMPLATE).labels])
    cases = {
        ("mean", False): sums / tokens,
        ("bytes", False): sums / [5, 7, 3],
        ("sum", True): sums - neutral,
        ("mean", True): (sums - neutral) / tokens,
    }
    for (normalise, prior), scores in cases.items():
        found = model.classify("chess", labels, template=TEMPLATE, normalise=normalise, prior=prior)
        np.testing.assert_allclose([label.logprob for label in found.labels], sums)
        wanted = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose([label.probability for label in found.labels], wanted, rtol=1e-9)
    other = model.classify("chess", labels, template=TEMPLATE, prior="N/A")
    assert other.probability != model.classify("chess", labels, template=TEMPLATE, prior=True).probability


def test_ids_are_labels_too(model: Model, theirs: PreTrainedModel):
    ids = model.encode(" games python")
    prompt = "Description: chess\nSection:"
    found = model.classify("chess", label_token_ids=ids, template="Description: {text}\nSection:")
    with torch.no_grad():
        logits = theirs(input_ids=torch.tensor([model.encode(prompt)])).logits[0, -1].double()
    wanted = torch.log_softmax(logits, -1)[ids].numpy()
    np.testing.assert_allclose([label.logprob for label in found.labels], wanted, atol=0.05)
    assert [label.label for label in found.labels] == [" games", " python"]
    assert found.labels[0].probability == pytest.approx(torch.softmax(logits[ids], 0)[0].item(), abs=1e-3)


def test_the_template_may_tell_the_labels(model: Model):
    found = model.classify("chess", ["games", "net"], template="One of {labels}. Description: {text}\nSection: ")
    assert found.prompt_tokens == len(model.encode("One of games, net. Description: chess\nSection:"))


def test_only_the_text_is_shortened(model: Model):
    context = model.package.manifest.config.context
    long = "chess " * 3000
    with pytest.raises(PromptError, match=f"the model's context is {context} tokens"):
        model.classify(long, ["games", "x11"], template=TEMPLATE)
    found = model.classify(long, ["games", "x11"], template=TEMPLATE, truncate=True)
    assert found.truncated_tokens > 0
    assert found.label == "games"
    assert found.prompt_tokens + found.truncated_tokens == len(model.encode(f"Description: {long}\nSection:"))


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (["a", "a"], {}, "labels 0 and 1 are equal"),
        ("abc", {}, "labels must be a list of texts"),
        ([], {}, "give either labels or label_token_ids"),
        (["a", ""], {}, "label 1 .''. has no tokens"),
        (["a"], {"template": "no place"}, "the template has no {text}"),
        (["a"], {"template": "{text}{text}"}, "has {text} 2 times"),
        (["a"], {"normalise": "max"}, "normalise must be sum or mean or bytes, not 'max'"),
        ([], {"label_token_ids": [9000]}, r"label_token_ids has 9000, the vocabulary is 0\.\.8191"),
        ([], {"label_token_ids": [5, 5]}, "labels 0 and 1 are equal"),
    ],
)
def test_what_cannot_be_classified_is_refused(model: Model, labels, options, message: str):
    with pytest.raises(OptionError, match=message):
        model.classify("chess", labels, **options)


def test_held_out_packages_get_the_section_that_transformers_gives(
    demo_package, packages, sections, reference: Scores, record_property
):
    import estream

    with estream.load(demo_package.path) as fast:
        found = fast.classify([row["description"] for row in packages], sections, template=TEMPLATE, truncate=True)
        first = {section: fast.encode(f" {section}")[0] for section in sections}
    right = np.mean([each.label == row["section"] for each, row in zip(found, packages, strict=True)])
    # All but two sections are one token, and those two differ from all others in their first.
    ids = np.array([first[section] for section in sections])
    theirs = np.array(sections)[reference.next_token[:, ids].argmax(1)]
    wanted = np.mean(theirs == [row["section"] for row in packages])
    record_property("accuracy", (float(right), float(wanted)))
    assert abs(right - wanted) <= ACCURACY
