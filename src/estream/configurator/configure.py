"""From a package, a device and a budget to a configuration: finds the profile, or makes it, and searches."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estream.configurator import store
from estream.configurator.identity import identity
from estream.configurator.keeper import Keeper
from estream.configurator.probe import probe
from estream.configurator.profile import Profile
from estream.configurator.prompt_lengths import searched_shapes
from estream.configurator.search import SearchResult, choose
from estream.configurator.simulate import Simulator
from estream.engine.device import LoadedDevice
from estream.engine.memory import ModelMemory
from estream.engine.options import Configuration, LoadOptions
from estream.engine.use import LearnedUse
from estream.errors import BudgetError
from estream.host.busy import look
from estream.host.doing import Doing, logged
from estream.host.sizes import GiB, format_bytes
from estream.package.package import Package

#: A smaller package is read so fast that measuring the machine would take longer than it could ever save.
PROBED_BYTES = GiB

logger = logging.getLogger("estream")


@dataclass(frozen=True)
class ChosenConfiguration:
    """A configuration and what it rests on: the ``profile`` under ``key``, the search in it and the simulator over it. They
    are None where nothing was measured.
    """

    configuration: Configuration
    profile: Profile | None
    search: SearchResult | None
    key: Mapping[str, Any]
    simulator: Simulator | None


def _keeper(package: Package, device: LoadedDevice, options: LoadOptions, memory: ModelMemory, doing: Doing) -> Keeper:
    key = identity(package, device.name, device.variant, device.threads, options.activations)
    return Keeper(
        key,
        str(package.path),
        measure=lambda: probe(package, device, options, memory, key),
        look=lambda: look(package.path),
        doing=doing,
    )


def profile_for(
    package: Package,
    device: LoadedDevice,
    options: LoadOptions,
    memory: ModelMemory,
    *,
    force: bool = False,
    doing: Doing = logged,
) -> tuple[Profile, bool]:
    """The profile of this machine for the package, and whether it was measured now. ``force`` measures in any case.

    Raises:
        BudgetError: the budget leaves no room for measuring.
        ReadError: the package could not be read.

    """
    keeper = _keeper(package, device, options, memory, doing)
    return (keeper.anew(), True) if force else keeper.profile()


def configure(
    package: Package,
    device: LoadedDevice,
    options: LoadOptions,
    memory: ModelMemory,
    use: LearnedUse,
    doing: Doing = logged,
) -> ChosenConfiguration:
    """The configuration for a model that is being loaded; what the user has set stays. ``use`` is what is known of its experts.

    A package below ``PROBED_BYTES`` is not measured for, nor is a device whose pages cannot be timed: without a profile it
    runs with the default values.
    """
    keeper = _keeper(package, device, options, memory, doing)
    key, profile = keeper.key, None
    if device.measurable and package.bytes < PROBED_BYTES:
        profile = store.find(key)
    elif device.measurable:
        try:
            profile, now = keeper.profile()
            profile = profile if now else keeper.upkept(profile)
        except BudgetError:
            logger.warning(
                "a budget of %s leaves no room for measuring this machine: the default configuration is used; "
                "'estream tune' with a larger budget measures once and for all",
                format_bytes(memory.budget_bytes),
            )
    if profile is None:
        return ChosenConfiguration(options.apply(Configuration()), None, None, key, None)
    search = choose(memory, profile, options.given, searched_shapes(memory), use)
    return ChosenConfiguration(search.chosen.configuration, profile, search, key, Simulator(memory, profile, use=use))
