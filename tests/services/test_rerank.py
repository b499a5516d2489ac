"""Documents by P(yes) among yes and no."""

import json

import numpy as np
import pytest
from tiny import logits

from estream import RerankTemplate
from estream.errors import OptionError, PromptError
from estream.services.rerank import QWEN3_RERANKER, read_template
from estream.services.templates import Template

TEMPLATE = RerankTemplate("Description: {document}\n{instruct}{query}\nSection:", "", " games", " devel")
DOCUMENTS = ["Play chess across 3 boards", "A compiler for a language", "Parse C++ headers", "A strategy game"]


def test_scores_are_the_share_of_yes(model, theirs):
    found = model.rerank("what", DOCUMENTS, template=TEMPLATE)
    yes, no = model.encode(" games")[0], model.encode(" devel")[0]
    wanted = []
    for text in DOCUMENTS:
        last = logits(theirs, np.array(model.encode(f"Description: {text}\nwhat\nSection:")))[-1].astype(np.float64)
        wanted.append(1 / (1 + np.exp(last[no] - last[yes])))
    by_index = sorted(found.results, key=lambda each: each.index)
    np.testing.assert_allclose([each.score for each in by_index], wanted, atol=5e-3)
    assert [each.score for each in found.results] == sorted((each.score for each in found.results), reverse=True)
    assert all(0 <= each.score <= 1 and each.document == DOCUMENTS[each.index] for each in found.results)
    assert model.rerank("what", DOCUMENTS, template=TEMPLATE, top=2).results == found.results[:2]
    many = model.rerank(["what", "else"], [DOCUMENTS, DOCUMENTS[:1]], template=TEMPLATE)
    assert many[0].results == found.results
    assert len(many[1].results) == 1


def test_an_instruction_is_part_of_the_prompt(model):
    plain = model.rerank("q", DOCUMENTS[:1], template=TEMPLATE).results[0]
    told = model.rerank("q", DOCUMENTS[:1], template=TEMPLATE, instruct="Only C. ").results[0]
    assert told.prompt_tokens > plain.prompt_tokens
    assert told.score != plain.score


def test_only_the_document_is_shortened(model):
    with pytest.raises(PromptError, match="document 1 has"):
        model.rerank("q", ["a", "chess " * 3000], template=TEMPLATE)
    found = model.rerank("q", ["a", "chess " * 3000], template=TEMPLATE, truncate=True)
    assert [each.truncated_tokens > 0 for each in sorted(found.results, key=lambda each: each.index)] == [False, True]


def test_the_published_form_of_qwen3_reranker():
    template = Template(QWEN3_RERANKER.text, "document", ("instruct", "query", "document"))
    values = {"instruct": QWEN3_RERANKER.instruct, "query": "Q", "document": "D"}
    text = "".join(part.text for part in template.segments(values))
    assert text == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
        'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: Q\n<Document>: D"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert (QWEN3_RERANKER.yes, QWEN3_RERANKER.no) == ("yes", "no")


def test_templates_from_files(tmp_path, model):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"text": TEMPLATE.text, "yes": " games", "no": " devel"}))
    found = model.rerank("what", DOCUMENTS, template=str(path))
    assert found.results == model.rerank("what", DOCUMENTS, template=TEMPLATE).results
    assert read_template("qwen3-reranker") is QWEN3_RERANKER
    for content, message in (
        ('{"text": 5}', "'text' must be str"),
        ('{"text": "x", "else": 1}', "'else' is not known"),
        ("[", "not valid JSON"),
        (json.dumps({"text": "{document}", "yes": ""}), "'yes'"),
    ):
        path.write_text(content)
        with pytest.raises(OptionError, match=message):
            read_template(path)
    with pytest.raises(OptionError, match="'absent' is neither qwen3-reranker nor a file"):
        read_template("absent")


@pytest.mark.parametrize(
    ("template", "options", "message"),
    [
        (RerankTemplate("{query}"), {}, "the template has no {document}"),
        (RerankTemplate("{query} {document}", yes="not one token"), {}, "must be one token of this model"),
        (RerankTemplate("{query} {document}", yes="a", no="a"), {}, "are the same token"),
        (RerankTemplate("{query} {document}", yes="a", no="b"), {"instruct": "x"}, "the template has no {instruct}"),
        (RerankTemplate("{query} {document}", yes="a", no="b"), {"top": 0}, "top must be at least 1"),
    ],
)
def test_what_does_not_suit_is_refused(model, template, options, message):
    with pytest.raises(OptionError, match=message):
        model.rerank("q", ["d"], template=template, **options)
    with pytest.raises(PromptError, match="the documents must be a list of at least one text"):
        model.rerank("q", [], template=TEMPLATE)
