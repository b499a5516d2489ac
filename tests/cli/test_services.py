"""``estream score``, ``classify``, ``rerank`` and ``embed``: rows in, results out, stopped and gone on."""

import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cgroup import estream_command
from command import run
from paths import HELD_OUT

import estream
from estream.package.package import Package

TEMPLATE = "Description: {text}\nSection: "
LABELS = "games,net,python,libs"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty rows, each with an id of its own."""
    found = [json.loads(line) for line in HELD_OUT.read_text().splitlines()[:40]]
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"id": f"p{i}", "text": row["description"][:300]}) + "\n" for i, row in enumerate(found))
    )
    return path


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def classify(package: Package, *more: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run("classify", package.path, "--labels", LABELS, "--template", TEMPLATE, *more, stdin=stdin)


@pytest.fixture(scope="module")
def whole(demo_package: Package, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What an undisturbed run writes."""
    path = tmp_path_factory.mktemp("whole") / "out.jsonl"
    result = classify(demo_package, "--input", rows, "--output", path)
    assert result.returncode == 0, result.stderr
    assert "40 rows in" in result.stderr
    return path.read_text()


def test_rows_are_answered_in_their_order(demo_package: Package, rows: Path, whole: str):
    found = lines(whole)
    assert [(row["index"], row["id"]) for row in found] == [(i, f"p{i}") for i in range(40)]
    with estream.load(demo_package.path) as model:
        texts = [row["text"] for row in lines(rows.read_text())]
        expected = model.classify(texts, LABELS.split(","), template=TEMPLATE)
    for row, answer in zip(found, expected, strict=True):
        assert answer.to_json().items() <= row.items()


def test_standard_input_and_output(demo_package: Package, rows: Path, whole: str):
    result = classify(demo_package, "--input", "-", stdin=rows.read_text())
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout) == [{k: v for k, v in row.items() if k != "key"} for row in lines(whole)]
    plain = classify(demo_package, "--input", "-", stdin="chess\n\na web server\r\n")
    assert [row["index"] for row in lines(plain.stdout)] == [0, 1]


@pytest.mark.parametrize("cut", [0, 5, 1000, -3, -1])
def test_what_is_there_is_skipped_and_half_a_line_is_cut(
    demo_package: Package, rows: Path, whole: str, tmp_path: Path, cut: int
):
    path = tmp_path / "out.jsonl"
    path.write_text(whole[:cut])
    result = classify(demo_package, "--input", rows, "--output", path, "--resume", "--json")
    assert result.returncode == 0, result.stderr
    assert path.read_text() == whole
    facts = json.loads(result.stdout)
    assert facts["skipped"] == whole[:cut].count("\n")
    assert facts["rows"] + facts["skipped"] == 40


def test_other_settings_or_rows_are_not_gone_on_with(demo_package: Package, rows: Path, whole: str, tmp_path: Path):
    path, other = tmp_path / "out.jsonl", tmp_path / "other.jsonl"
    path.write_text(whole)
    taken = classify(demo_package, "--input", rows, "--output", path)
    assert taken.returncode == 2
    assert "--resume goes on with it" in taken.stderr
    changed = classify(demo_package, "--input", rows, "--output", path, "--resume", "--normalise", "mean")
    assert changed.returncode == 2
    assert "row 0 was made of another input or with other settings" in changed.stderr
    other.write_text(rows.read_text().replace('"p7"', '"p70"'))
    assert "row 7 was made" in classify(demo_package, "--input", other, "--output", path, "--resume").stderr
    other.write_text("".join(rows.read_text().splitlines(keepends=True)[:39]))
    assert "has more rows than the input" in classify(demo_package, "--input", other, "--output", path, "--resume").stderr
    assert path.read_text() == whole
    path.write_text('{"a": 1}\n')
    assert "it is none of ours" in classify(demo_package, "--input", rows, "--output", path, "--resume").stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on(demo_package: Package, tmp_path: Path, number: int):
    many, path = tmp_path / "many.jsonl", tmp_path / "out.jsonl"
    descriptions = [json.loads(line)["description"] for line in HELD_OUT.read_text().splitlines()]
    many.write_text("".join(json.dumps({"text": text}) + "\n" for text in descriptions))
    command = ["embed", demo_package.path, "--input", many, "--output", path]
    process = subprocess.Popen(estream_command(*command), stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (path.exists() and path.stat().st_size):
        pass
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    written = len(path.read_text().splitlines())
    assert written > 0
    if number == signal.SIGINT and process.returncode:
        assert (process.returncode, said.splitlines()[-1]) == (130, "estream: interrupted")
    result = run(*command, "--resume", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["skipped"] in (written, written - 1)
    found = lines(path.read_text())
    assert [row["index"] for row in found] == list(range(400))
    with estream.load(demo_package.path) as model:
        np.testing.assert_array_equal(model.embed(descriptions[399]).vector, np.float32(found[399]["vector"]))


def test_vectors_as_an_array(demo_package: Package, rows: Path, tmp_path: Path):
    path = tmp_path / "out.npy"
    arguments = ("embed", demo_package.path, "--input", rows, "--output", path, "--pooling", "mean", "--dimensions", "32")
    assert run(*arguments).returncode == 0
    found = np.load(path)
    assert (found.dtype, found.shape) == (np.float32, (40, 32))
    with estream.load(demo_package.path) as model:
        texts = [row["text"] for row in lines(rows.read_text())]
        expected = [each.vector for each in model.embed(texts, pooling="mean", dimensions=32)]
    np.testing.assert_array_equal(found, expected)
    assert list(tmp_path.iterdir()) == [path]
    assert "is finished already" in run(*arguments, "--resume").stderr


def test_parquet_in_and_out(demo_package: Package, rows: Path, whole: str, tmp_path: Path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    source, path = tmp_path / "rows.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.Table.from_pylist(lines(rows.read_text())), source)
    result = classify(demo_package, "--input", source, "--output", path)
    assert result.returncode == 0, result.stderr
    drop = {"key"}
    found = [{k: v for k, v in row.items() if k not in drop} for row in pq.read_table(path).to_pylist()]
    assert found == [{k: v for k, v in row.items() if k not in drop} for row in lines(whole)]
    source.write_bytes(b"no parquet")
    assert "cannot be read as Parquet" in classify(demo_package, "--input", source).stderr


def test_a_query_ranks_documents(demo_package: Package, tmp_path: Path):
    template, documents, output = tmp_path / "t.json", tmp_path / "docs.txt", tmp_path / "out.jsonl"
    template.write_text(json.dumps({"text": "Description: {document}\n{query}:", "yes": " games", "no": " devel"}))
    documents.write_text("A compiler\nPlay chess\nA strategy game\n")
    common = ("rerank", demo_package.path, "--template", template)
    result = run(*common, "--query", "Section", "--documents", documents, "--top", "2")
    assert result.returncode == 0, result.stderr
    found = lines(result.stdout)
    assert {row["index"] for row in found} == {1, 2}
    assert found[0]["score"] > found[1]["score"]
    assert run(*common, "--query", "Section", "--documents", documents, "--top", "2", "--output", output).returncode == 0
    assert [{k: v for k, v in row.items() if k != "key"} for row in lines(output.read_text())] == found
    (tmp_path / "in.jsonl").write_text(json.dumps({"query": "Section", "documents": documents.read_text().splitlines()}))
    (row,) = lines(run(*common, "--input", tmp_path / "in.jsonl", "--top", "2").stdout)
    assert [(each["index"], each["score"]) for each in row["results"]] == [(each["index"], each["score"]) for each in found]


def test_one_text(demo_package: Package):
    score = run("score", demo_package.path, "--text", "Section:", "--continuation", " games", "--json")
    facts = json.loads(score.stdout)
    assert [token["token"] for token in facts["tokens"]] == [" games"]
    assert facts["stats"]["prompts"] == 1
    assert "a byte" in run("score", demo_package.path, "--text", "a web server").stdout
    assert "outside all labels" in classify(demo_package, "--text", "chess").stdout
    assert len(run("embed", demo_package.path, "--text", "chess", "--dimensions", "4").stdout.split()) == 4


def test_a_row_that_cannot_be_is_named(demo_package: Package, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    for content, message in (
        ('{"text": "a"}\n[1]\n', f"{path}: line 2: must be a JSON object, found [1]"),
        ('{"text": 5}\n', f"{path}: line 1: 'text' must be a text, found 5"),
        ('{"else": "a"}\n', f"{path}: line 1: has no 'text', but \"else\""),
        ('{"text": \n', f"{path}: line 1: not valid JSON"),
        (json.dumps({"text": "chess " * 3000}) + "\n", f"{path}: line 1 has "),
    ):
        path.write_text(content)
        result = classify(demo_package, "--input", path)
        assert result.returncode == 1
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1
    path.write_bytes(b'{"text": "\xff"}\n')
    assert "line 1: not UTF-8 text" in classify(demo_package, "--input", path).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("classify", "--text", "a", "--input", "b", "--labels", "x"), "give one of --text and --input"),
        (("classify", "--text", "a"), "give either labels or label_token_ids"),
        (("classify", "--text", "a", "--labels", "x,"), "--labels must be texts separated by commas"),
        (("classify", "--text", "a", "--label-token-ids", "1,b"), "--label-token-ids must be whole numbers"),
        (("classify", "--text", "a", "--labels", "x", "--neutral", "n"), "--neutral needs --prior"),
        (("score", "--input", "absent.jsonl"), "there is no such file"),
        (("score", "--input", "absent.jsonl", "--resume"), "need --output"),
        (("score", "--text", "a", "--memory", "lots"), "--memory"),
        (("rerank", "--query", "q"), "give --query with --documents"),
        (("rerank", "--query", "q", "--documents", "absent"), "there is no such file"),
        (("embed", "--input", "-", "--format", "csv"), "--format must be jsonl or npy, not 'csv'"),
        (("embed", "--text", "a", "--pooling", "max"), "pooling must be last or mean"),
    ],
)
def test_wrong_usage_is_told_in_a_line(demo_package: Package, arguments, message):
    result = run(arguments[0], demo_package.path, *arguments[1:])
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
