"""``estream rerank``: documents by how well they answer a query."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from estream.api.model import Model
from estream.cli.forms import form_of, ranked
from estream.cli.options import MOST_TOP, Activations, Memory, Threads
from estream.cli.results import Target
from estream.cli.rows import Row
from estream.cli.services import (
    AllowSpecial,
    AsJson,
    Device,
    Input,
    Output,
    Package,
    Resume,
    Truncate,
    Work,
    load_options,
    run_rows,
)
from estream.cli.temporary import ranked_to_stdout
from estream.errors import OptionError
from estream.services.jobs import Job
from estream.services.rerank import RankedDocument, Reranker, RerankOptions
from estream.text.segments import TextRule


@dataclass(frozen=True)
class _Ranked:
    """A document with its sweep's figures."""

    document: RankedDocument
    stats: Any

    def to_json(self) -> dict[str, Any]:
        return self.document.to_json()


def rerank_command(
    path: Package,
    query: Annotated[str | None, typer.Option("--query", help="What is searched.")] = None,
    documents: Annotated[
        Path | None, typer.Option("--documents", help="Documents: F.jsonl or F.parquet (column text or document), or lines.")
    ] = None,
    given: Input = None,
    top: Annotated[int | None, typer.Option("--top", min=1, max=MOST_TOP, help="So many of the best.")] = None,
    template: Annotated[str, typer.Option("--template", help="qwen3-reranker, or a JSON file.")] = "qwen3-reranker",
    instruct: Annotated[str | None, typer.Option("--instruct", help="What relevance means, instead of the template's.")] = None,
    output: Output = None,
    resume: Resume = False,
    allow_special: AllowSpecial = False,
    truncate: Truncate = False,
    memory: Memory = None,
    threads: Threads = None,
    device: Device = "cpu",
    activations: Activations = "int8",
    as_json: AsJson = False,
) -> None:
    """Print documents best first with scores in 0..1; of an --input, for each row with "query" and "documents"."""
    if (query is None) != (documents is None) or (query is None) == (given is None):
        raise OptionError("give --query with --documents, or --input with rows that have 'query' and 'documents'")
    options = RerankOptions(template, instruct, top, TextRule(allow_special, truncate))
    load = load_options(memory, threads, device, activations)
    settings = {"query": query, "options": repr(options)}
    if given is not None:
        target = Target(output, resume, form_of(output))
        run_rows(Work("rerank", path, given, target, load, settings, as_json), lambda model: (_lists(model, options), None))
        return
    assert query is not None
    assert documents is not None
    with ranked_to_stdout(output, resume, lambda path: ranked(top, form_of(path))) as target:
        work = Work("rerank", path, documents, target, load, settings, as_json)
        run_rows(work, lambda model: (_documents(model, options, query), None))


def _lists(model: Model, options: RerankOptions) -> Any:
    reranker = Reranker(model, options)
    return lambda row: reranker.rank_job(row.text("query"), row.texts("documents"), row.where)


def _documents(model: Model, options: RerankOptions, query: str) -> Any:
    reranker = Reranker(model, options)

    def job(row: Row) -> Job[_Ranked]:
        found = reranker.job(query, row.text("document", "text"), row.index, row.where)
        return Job(found.requests, lambda readings: _Ranked(*found.finish(readings)))

    return job
