"""Every path and relative link in README.md, CONTRIBUTING.md and docs/ names a file that exists.

A path may be short. It is resolved against the repository, the document's folder, ``src/estream/``, ``csrc/``, ``tests/``, and
the folders of paths that the document has named before, so that "`checkpoint/gguf/configs.py`, `keys.py`" works.
``docs/experiments.md`` tells history and may name files that are gone.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "experiments.md"),
]
BASES = [ROOT, ROOT / "src" / "estream", ROOT / "csrc", ROOT / "tests"]

_LINK = re.compile(r"\]\(([^)\s]+)\)")
#: A code span that is a path, not a command.
_PATH = re.compile(r"`([\w./*-]+\.(?:py|pyi|h|cpp|cmake))`")


def _missing_paths(document: Path) -> list[str]:
    missing: list[str] = []
    bases = [*BASES, document.parent]
    for path in _PATH.findall(re.sub(r"```.*?```", "", document.read_text("utf-8"), flags=re.DOTALL)):
        # A word in capitals stands for any name.
        pattern = re.sub(r"[A-Z]{3,}", "*", path)
        found = next((match for base in bases for match in base.glob(pattern)), None)
        if found is None:
            missing.append(path)
        else:
            bases.append(found.parent)
    return missing


def _missing_links(document: Path) -> list[str]:
    links = [link.partition("#")[0] for link in _LINK.findall(document.read_text("utf-8"))]
    return [link for link in links if link and "://" not in link and not (document.parent / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_and_link_exists(document: Path):
    assert _missing_paths(document) == []
    assert _missing_links(document) == []
