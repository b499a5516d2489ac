"""Keeps a machine's profile: measures where there is none, and anew where there is a reason to and the machine is idle."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from estream.configurator import store
from estream.configurator.probe import PROBE_SECONDS
from estream.configurator.profile import Profile
from estream.configurator.renewal import fastest
from estream.configurator.upkeep import Upkeep, due, put_off, renewed
from estream.errors import BudgetError
from estream.host import system
from estream.host.busy import Others
from estream.host.doing import Doing, logged

#: The longest wait for another process that measures the same; after it, both measure.
_LOCK_SECONDS = 60.0

logger = logging.getLogger("estream")


@dataclass(frozen=True)
class Keeper:
    """The profile under ``key`` of the package called ``name``.

    ``measure`` measures this machine, ``look`` tells what others take of it now, ``now`` is in seconds since 1970.
    """

    key: Mapping[str, Any]
    name: str
    measure: Callable[[], Profile]
    look: Callable[[], Others]
    now: Callable[[], float] = time.time
    doing: Doing = logged

    def profile(self) -> tuple[Profile, bool]:
        """The kept profile, else one that is measured now, and whether it was. Raises what measuring does."""
        if (found := store.find(self.key)) is not None:
            return found, False
        with self._alone():
            # Whoever measured meanwhile has kept it.
            if (found := store.find(self.key)) is not None:
                return found, False
            profile = self._measured("once")
            store.keep(profile)
            return profile, True

    def anew(self) -> Profile:
        """Measure because the user says so. On an idle machine that replaces what was; else the better of both counts."""
        with self._alone():
            known, fresh = store.find(self.key), self._measured("anew")
            if known is not None and fresh.noisy:
                logger.warning("the machine was busy while it was measured, so the better of old and new figures count")
                fresh = fastest(known, fresh)
            store.keep(fresh)
            store.keep_upkeep(self.key, Upkeep(measured=self.now()))
            return fresh

    def upkept(self, profile: Profile) -> Profile:
        """The profile for a load: as it is, unless there is a reason to measure again, the wait is over and others are idle."""
        if not due(profile, store.find_upkeep(self.key), self.now()):
            return profile
        with system.hold_file(store.lock_path(self.key), 0.0) as alone:
            profile, upkeep = store.find(self.key) or profile, store.find_upkeep(self.key)
            if not alone or not due(profile, upkeep, self.now()):
                return profile
            # Noted before anything is done: a load that is killed while measuring, or that can note nothing, ends it too.
            if not store.keep_upkeep(self.key, put_off(upkeep, self.now())) or self.look().busy:
                return profile
            try:
                fresh = self._measured("again: it was busy before" if profile.noisy else "again: sweeps took other times")
            except BudgetError:
                return profile
            best, upkeep = renewed(profile, upkeep, fresh, self.now())
            store.keep(best)
            store.keep_upkeep(self.key, upkeep)
            return best

    def _measured(self, why: str) -> Profile:
        with self.doing(f"measuring this machine for {self.name}, {why}", PROBE_SECONDS + 1):
            return self.measure()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait where another process measures the same, since two at once would measure each other."""
        path = store.lock_path(self.key)
        with system.hold_file(path, 0.0) as alone:
            if alone:
                yield
                return
        with ExitStack() as stack:
            with self.doing("waiting for another load, which measures this machine", None):
                stack.enter_context(system.hold_file(path, _LOCK_SECONDS))
            yield
