"""What a tokenizer takes for a text that it must see whole is no more than was asked for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from paths import DEMO
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

TEXTS = {
    "english": "{english} * 3",
    "short words": "'a b c d ' * 50000",
    "figures": "'1 2 3 ' * 60000",
    "unknown": "'\u4f60' * 120000",
    "lengthened": "'\ufdfa' * 20000",
    "lengthened, in one piece": "'\ufdfa' * 16384",
}
PROGRAM = """
import json, sys
from pathlib import Path
from estream.host import limits
from estream.text.tokenizer import TextTokenizer
folder, asked = Path(sys.argv[1]), []
tokenizer, text = TextTokenizer(folder / "tokenizer.json", folder), eval(sys.argv[2])
tokenizer.ids("warm")
before = limits.resident_bytes()
tokens = len(tokenizer.ids(text, check=asked.append))
print(json.dumps([asked, limits.peak_resident_bytes() - before, tokens]))
"""


@pytest.fixture(scope="module", params=["unigram", "wordpiece"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=2000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=2000, special_tokens=["<unk>"], show_progress=False)
    lines = (DEMO.parent / "calibration.txt").read_text().splitlines()[:400]
    tokenizer.train_from_iterator(lines, trainer)
    path = tmp_path_factory.mktemp(request.param)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_takes_no_more_than_was_asked_for(name: str, folder: Path):
    english = f"Path({str(DEMO.parent / 'calibration.txt')!r}).read_text()"
    command = [sys.executable, "-c", PROGRAM, str(folder), TEXTS[name].format(english=english)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    asked, took, tokens = json.loads(done.stdout)
    assert len(asked) == 1
    assert tokens > 0
    # Memory that the interpreter and the allocator keep is none of the text's.
    assert took <= asked[0] + (8 << 20), f"{took >> 20} MiB"
