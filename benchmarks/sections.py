"""The demo model classifies the 400 held-out packages in one command, beside one by one and beside transformers in float32.

    python benchmarks/sections.py [--rows 400] [--commands 5]

Prints packages a second of one ``estream classify`` over all rows, of one command for each package, and of one call for each on
a loaded model; and the accuracy beside transformers'. All in one run, since machines differ and are shared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import estream
from estream.api.model import Model
from estream.engine.options import LoadOptions
from estream.package.package import open_package

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = "Description: {text}\nSection: "
ESTREAM = [sys.executable, "-c", "from estream.cli.main import main; main()"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--commands", type=int, default=5)
    parser.add_argument("--skip-transformers", action="store_true")
    given = parser.parse_args()
    rows = [json.loads(line) for line in (ROOT / "demo/held_out.jsonl").read_text().splitlines()]
    sections = sorted({row["section"] for row in rows})
    rows = rows[: given.rows]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "demo.estream"
        estream.convert(ROOT / "demo/debian-sections", package)
        facts = measure(package, Path(folder), rows, sections, given.commands)
    for name, value in facts.items():
        print(f"{name}: {value:.4g}", flush=True)
    if not given.skip_transformers:
        print(f"accuracy of transformers: {accuracy_of_transformers(rows, sections):.4g}")


def measure(package: Path, folder: Path, rows: list[dict[str, str]], sections: list[str], commands: int) -> dict[str, float]:
    source, output, template = folder / "rows.jsonl", folder / "labels.jsonl", folder / "template.txt"
    template.write_text(TEMPLATE)
    common = ["--labels", ",".join(sections), "--template-file", str(template), "--truncate"]

    def command(*arguments: str) -> float:
        begin = time.perf_counter()
        subprocess.run([*ESTREAM, "classify", str(package), *common, *arguments], check=True, capture_output=True)
        return time.perf_counter() - begin

    command("--text", "the first command of a package on a machine may measure it")
    source.write_text("".join(json.dumps({"text": row["description"]}) + "\n" for row in rows))
    together = command("--input", str(source), "--output", str(output))
    single = sum(command("--text", row["description"]) for row in rows[:commands]) / commands
    found = [json.loads(line)["label"] for line in output.read_text().splitlines()]
    facts = {
        "packages a second, one command": len(rows) / together,
        "packages a second, a command each": 1 / single,
        "times as many": single * len(rows) / together,
        "accuracy": float(np.mean([label == row["section"] for label, row in zip(found, rows, strict=True)])),
    }
    texts = [row["description"] for row in rows]
    for name, options in (("in memory", LoadOptions()), ("streamed", LoadOptions(ring_bytes=0, pinned_bytes=0))):
        with Model(open_package(package, "cpu"), options) as model:
            facts |= on_a_loaded_model(model, texts, sections, name)
    return facts


def on_a_loaded_model(model: Model, texts: list[str], sections: list[str], name: str) -> dict[str, float]:
    """Seconds by the clock, of which another process may take some, and of this process's own work."""

    def timed(given: list[list[str]]) -> tuple[float, float]:
        begin, work = time.perf_counter(), time.process_time()
        for part in given:
            model.classify(part, sections, template=TEMPLATE, truncate=True)
        return (time.perf_counter() - begin) / len(texts), (time.process_time() - work) / len(texts)

    timed([texts[:1]])
    clock, work = timed([texts])
    clock_each, work_each = timed([[text] for text in texts])
    return {
        f"loaded, {name}: packages a second, one call": 1 / clock,
        f"loaded, {name}: packages a second, a call each": 1 / clock_each,
        f"loaded, {name}: times as many": clock_each / clock,
        f"loaded, {name}: times as many, by processor time": work_each / work,
    }


def accuracy_of_transformers(rows: list[dict[str, str]], sections: list[str]) -> float:
    """Each label's log-likelihood in float32, one prompt after another."""
    import torch
    from tokenizers import Tokenizer
    from transformers import OlmoeForCausalLM

    demo = ROOT / "demo/debian-sections"
    tokenizer = Tokenizer.from_file(str(demo / "tokenizer.json"))
    model = OlmoeForCausalLM.from_pretrained(demo, dtype=torch.float32).eval()
    labels = [tokenizer.encode(f" {section}").ids for section in sections]
    right = 0
    for row in rows:
        prompt = tokenizer.encode(f"Description: {row['description']}\nSection:").ids
        with torch.no_grad():
            first = torch.log_softmax(model(input_ids=torch.tensor([prompt])).logits[0, -1], -1)
            scores = [first[label[0]].item() for label in labels]
            for index, label in enumerate(labels):
                if len(label) > 1:
                    logits = model(input_ids=torch.tensor([prompt + label[:-1]])).logits[0, len(prompt) :]
                    rest = torch.log_softmax(logits, -1)
                    scores[index] += sum(rest[at, token].item() for at, token in enumerate(label[1:]))
        right += sections[int(np.argmax(scores))] == row["section"]
    return right / len(rows)


if __name__ == "__main__":
    main()
