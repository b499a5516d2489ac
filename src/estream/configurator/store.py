"""Where measured profiles are kept: one file for each machine, set of limits, package and version."""

import functools
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


def folder() -> Path | None:
    """``$ESTREAM_CACHE``, else the user's cache: on Linux ``estream`` below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    None for a user without a home, which is said once.
    """
    if given := os.environ.get("ESTREAM_CACHE"):
        return Path(given)
    from platformdirs import user_cache_path  # takes a while, and few commands need it

    try:
        found = user_cache_path("estream", appauthor=False)
    except RuntimeError:
        found = None
    # Where neither the environment nor the list of users has a home, some versions leave "~" in the path.
    if found is not None and found.is_absolute():
        return found
    _say_no_folder()
    return None


@functools.cache
def _say_no_folder() -> None:
    logger.warning("this user has no home, so profiles of this machine are not kept; set ESTREAM_CACHE to a folder for them")


def path_of(key: Mapping[str, Any]) -> Path | None:
    """The file of a profile; None where there is no folder for it."""
    return None if (found := folder()) is None else found / f"profile-{short(key)}.json"


def find(key: Mapping[str, Any]) -> Profile | None:
    """The profile measured under exactly these conditions; None where there is none. A damaged one is said and not used."""
    path = path_of(key)
    try:
        return None if path is None or not path.exists() else read_profile(path)
    except (OSError, OptionError) as error:
        logger.warning("%s; this machine is measured again", error)
        return None


def keep(profile: Profile) -> Path | None:
    """Write a profile, whole or not at all. Where that is impossible it is said, and None returned."""
    path = path_of(profile.key)
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as aside:
            file = Path(aside) / path.name
            with open(file, "w", encoding="utf-8") as handle:
                json.dump(profile.to_json(), handle, indent=1)
            file.replace(path)
    except OSError as error:
        logger.warning("%s: the profile cannot be kept (%s); set ESTREAM_CACHE to another folder", path, error.strerror)
        return None
    return path


def forget(key: Mapping[str, Any]) -> None:
    """Remove a profile that turned out wrong; the next load measures again."""
    path = path_of(key)
    try:
        if path is not None:
            path.unlink(missing_ok=True)
    except NotADirectoryError:
        return
    except OSError as error:
        logger.warning("%s: the profile turned out wrong and cannot be removed (%s)", path, error.strerror)
