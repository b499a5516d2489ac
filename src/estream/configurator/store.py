"""Where measured profiles are kept: one file for each machine, set of limits, package and version."""

import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estream.configurator.identity import short
from estream.configurator.profile import Profile, read_profile
from estream.errors import OptionError

logger = logging.getLogger("estream")


def folder() -> Path:
    """``$ESTREAM_CACHE``, else ``estream`` below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if given := os.environ.get("ESTREAM_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "estream"


def path_of(key: Mapping[str, Any]) -> Path:
    return folder() / f"profile-{short(key)}.json"


def find(key: Mapping[str, Any]) -> Profile | None:
    """The profile measured under exactly these conditions; None where there is none. A damaged one is said and not used."""
    path = path_of(key)
    if not path.exists():
        return None
    try:
        return read_profile(path)
    except OptionError as error:
        logger.warning("%s; this machine is measured again", error)
        return None


def keep(profile: Profile) -> Path | None:
    """Write a profile, whole or not at all. Where that is impossible it is said, and None returned."""
    path = path_of(profile.key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, suffix=".tmp") as file:
            json.dump(profile.to_json(), file, indent=1)
        Path(file.name).replace(path)
    except OSError as error:
        logger.warning("%s: the profile cannot be kept (%s); set ESTREAM_CACHE to another folder", path, error.strerror)
        return None
    return path


def forget(key: Mapping[str, Any]) -> None:
    """Remove a profile that turned out wrong; the next load measures again."""
    path_of(key).unlink(missing_ok=True)
