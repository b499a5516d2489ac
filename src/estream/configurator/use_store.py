"""Where it is kept how a package's experts were used: a file for each package, beside the profiles of the machine."""

import json
import logging
import time
from pathlib import Path

import numpy as np

from estream.configurator import store
from estream.configurator.identity import package_digest
from estream.engine.batch import BatchShape
from estream.engine.use import LearnedUse
from estream.host.regular_file import read_regular
from estream.host.sizes import MiB
from estream.package.expert_use import ExpertUse
from estream.package.package import Package
from estream.schema import SchemaError, decode, to_plain

#: More files than these are not kept; the ones unused for longest go.
_FILES = 64
_LARGEST = 64 * MiB
#: What was learned is kept when a model is closed, and this often before.
_KEPT_EVERY_S = 60.0

logger = logging.getLogger("estream")


class KeptUse:
    """The use of one package's experts: read once, changed by every sweep, kept in the machine's cache."""

    def __init__(self, package: Package) -> None:
        self._path = path_of(package)
        self.learned = _learned(self._path, package)
        self._changed, self._kept_at = False, time.monotonic()

    def observe(self, counts: np.ndarray, shape: BatchShape) -> None:
        """Learn from a sweep: ``counts`` int64 [layers, experts]."""
        self.learned.observe(counts, shape)
        self._changed = True
        if time.monotonic() - self._kept_at > _KEPT_EVERY_S:
            self.keep()

    def keep(self) -> None:
        """Write what is known, whole or not at all. A folder that cannot be written to is no error: it is learned again."""
        if not self._changed or self._path is None:
            return
        self._changed, self._kept_at = False, time.monotonic()
        text = json.dumps(to_plain(self.learned.stored()), separators=(",", ":"))
        failed = store.write_whole(self._path, text) or _forget_oldest(self._path.parent)
        if failed is not None:
            logger.info("%s: the use of experts cannot be kept (%s)", self._path, failed.strerror)


def path_of(package: Package) -> Path | None:
    """The file of a package; None where there is no folder for it."""
    folder = store.folder()
    return None if folder is None else folder / f"use-{package_digest(package)}.json"


def learned_use(package: Package) -> LearnedUse:
    """What is known of a package's experts: from prompts on this machine, else from the text that it was converted with."""
    return _learned(path_of(package), package)


def _learned(path: Path | None, package: Package) -> LearnedUse:
    return _read(path, package) or LearnedUse(package.manifest.config, package.manifest.use)


def _read(path: Path | None, package: Package) -> LearnedUse | None:
    try:
        if path is None or not path.exists():
            return None
        use = decode(read_regular(path, _LARGEST), ExpertUse)
        use.check(package.manifest.config)
        return LearnedUse(package.manifest.config, use)
    except (OSError, SchemaError) as error:
        logger.warning("%s: %s; the use of experts is learned again", path, error)
        return None


def _forget_oldest(folder: Path) -> OSError | None:
    """Remove the files beyond the bound; returns what prevents it."""
    try:
        files = sorted(folder.glob("use-*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[:-_FILES]:
            path.unlink(missing_ok=True)
    except OSError as error:
        return error
    return None
