"""Vectors against transformers' hidden states."""

import numpy as np
import pytest
import torch
from tolerances import FLOAT_LOGITS

from estream.errors import OptionError, PackageError, PromptError
from estream.services.embed import Embedder, EmbedOptions, pooling_of, unit

TEXT = "Play chess across 3 boards"


def hidden(theirs, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return theirs(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0].numpy()


@pytest.mark.parametrize("pooling", ["last", "mean", None])
def test_vectors_are_transformers_hidden_states(model, theirs, pooling):
    states = hidden(theirs, model.encode(TEXT))
    wanted = states.mean(0) if pooling == "mean" else states[-1]
    found = model.embed(TEXT, pooling=pooling)
    assert found.vector.dtype == np.float32
    np.testing.assert_allclose(found.vector, wanted / np.linalg.norm(wanted), atol=FLOAT_LOGITS)
    assert np.linalg.norm(found.vector.astype(np.float64)) == pytest.approx(1, abs=1e-6)
    short = model.embed(TEXT, pooling=pooling, dimensions=16).vector
    assert short.shape == (16,)
    np.testing.assert_allclose(short, wanted[:16] / np.linalg.norm(wanted[:16]), atol=5 * FLOAT_LOGITS)


def test_the_same_bits_alone_and_together(model, packages):
    texts = [row["description"] for row in packages[:10]]
    for pooling in ("last", "mean"):
        together = model.embed(texts[::-1], pooling=pooling)
        for text, found in zip(texts[::-1], together, strict=True):
            np.testing.assert_array_equal(model.embed(text, pooling=pooling).vector, found.vector)


def test_a_prompt_stands_before_the_text(model):
    found = model.embed(TEXT, prompt="Query: ")
    np.testing.assert_array_equal(found.vector, model.embed(model.encode("Query: " + TEXT)).vector)
    with pytest.raises(OptionError, match="names no prompt 'query'; there are: none"):
        model.embed(TEXT, prompt_name="query")


class _About:
    """A model of which only what came with it matters."""

    def __init__(self, model, about):
        self.prompts, self.about = model.prompts, about


def test_prompts_and_pooling_that_came_with_the_checkpoint(model):
    about = {
        "config_sentence_transformers.json": {"prompts": {"query": "Query: "}, "default_prompt_name": "query"},
        "pooling.json": {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 256},
        "modules.json": [{"type": "sentence_transformers.models.Pooling"}],
    }
    embedder = Embedder(_About(model, about), EmbedOptions())
    job = embedder.job(TEXT, "the text")
    assert job.requests[0].prompt.tolist() == model.encode("Query: " + TEXT)
    assert job.requests[0].wanted.mean


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"pooling.json": {"pooling_mode_cls_token": True}}, "asks for pooling_mode_cls_token"),
        ({"pooling.json": {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}}, "must ask for one of"),
        ({"pooling.json": {"pooling_mode_mean_tokens": 3}}, "'pooling_mode_mean_tokens' must be bool"),
        ({"pooling.json": {"pooling_mode_mean_tokens": True, "include_prompt": False}}, "leaves the prompt out"),
        ({"modules.json": [{"type": "sentence_transformers.models.Dense"}]}, "has a module 'Dense'"),
    ],
)
def test_a_pooling_that_is_not_known_is_refused(about, message):
    with pytest.raises(PackageError, match=message):
        pooling_of(about)


def test_what_cannot_be_embedded_is_refused(model):
    with pytest.raises(OptionError, match="dimensions must be 1 to 256"):
        model.embed(TEXT, dimensions=257)
    with pytest.raises(OptionError, match="pooling must be last or mean, not 'max'"):
        model.embed(TEXT, pooling="max")
    with pytest.raises(PromptError, match="text 1 is empty"):
        model.embed(["a", ""])


def test_zeros_stay_zeros():
    np.testing.assert_array_equal(unit(np.zeros(4, np.float32), 2), np.zeros(2, np.float32))
