"""Where measured profiles are kept: a file for each machine, set of limits, package and version; beside it one for upkeep."""

import functools
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from estream.configurator.identity import short
from estream.configurator.profile import LARGEST, Profile, read_profile
from estream.configurator.upkeep import Upkeep
from estream.errors import OptionError
from estream.host.regular_file import read_regular
from estream.schema import SchemaError

logger = logging.getLogger("estream")

#: Profiles that no file holds, and how many.
_unkept: dict[str, Profile] = {}
_MOST_UNKEPT = 16


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


def lock_path(key: Mapping[str, Any]) -> Path | None:
    """The file that whoever measures for a profile locks, in a folder that is made where that is possible."""
    if (path := path_of(key)) is None:
        return None
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_suffix(".lock")


def find(key: Mapping[str, Any]) -> Profile | None:
    """The profile measured under exactly these conditions; None where there is none. A damaged one is said and not used.

    Where none can be kept in a file, the one that this process has measured.
    """
    path = path_of(key)
    try:
        return _unkept.get(short(key)) if path is None or not path.exists() else read_profile(path)
    except (OSError, OptionError) as error:
        logger.warning("%s; this machine is measured again", error)
        return None


def keep(profile: Profile) -> Path | None:
    """Write a profile, whole or not at all. Where that is impossible it is said, this process alone keeps it, and the result
    is None.
    """
    path = path_of(profile.key)
    failed = write_whole(path, json.dumps(profile.to_json(), indent=1))
    _unkept.pop(short(profile.key), None)
    if failed is None:
        return path
    _unkept[short(profile.key)] = profile
    while len(_unkept) > _MOST_UNKEPT:
        del _unkept[next(iter(_unkept))]
    if path is not None:
        logger.warning("%s: the profile cannot be kept (%s); set ESTREAM_CACHE to another folder", path, failed.strerror)
    return None


def find_upkeep(key: Mapping[str, Any]) -> Upkeep:
    """What is remembered beside a profile; nothing where there is no such file, or a damaged one."""
    path = _upkeep_path(key)
    try:
        return Upkeep() if path is None or not path.exists() else Upkeep.of(read_regular(path, LARGEST))
    except (OSError, SchemaError):
        return Upkeep()


def keep_upkeep(key: Mapping[str, Any], upkeep: Upkeep) -> bool:
    """Write what is remembered beside a profile; returns whether that was possible. Nothing depends on it but repeated work."""
    return write_whole(_upkeep_path(key), json.dumps(upkeep.to_json(), indent=1)) is None


def _upkeep_path(key: Mapping[str, Any]) -> Path | None:
    return None if (path := path_of(key)) is None else path.with_name(f"upkeep-{short(key)}.json")


def write_whole(path: Path | None, text: str) -> OSError | None:
    """Write a file whole or not at all; returns what prevents it."""
    if path is None:
        return FileNotFoundError("no folder for it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as aside:
            file = Path(aside) / path.name
            file.write_text(text, encoding="utf-8")
            file.replace(path)
    except OSError as error:
        return error
    return None
