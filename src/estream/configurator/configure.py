"""From a package, a device and a budget to a configuration: finds the profile, or makes it, and searches."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from estream.configurator import store
from estream.configurator.identity import identity
from estream.configurator.probe import probe
from estream.configurator.profile import Profile
from estream.configurator.search import Choice, choose, usual_workloads
from estream.configurator.simulate import Setting, Simulator
from estream.configurator.simulated import Workload
from estream.engine.device import LoadedDevice
from estream.engine.options import Configuration, LoadOptions
from estream.errors import BudgetError
from estream.host.sizes import GiB, format_bytes
from estream.package.package import Package

#: A smaller package is read so fast that measuring the machine would take longer than it could ever save.
PROBED_BYTES = GiB

logger = logging.getLogger("estream")


@dataclass(frozen=True)
class Configured:
    """A configuration and what it rests on; ``profile`` and ``choice`` are None where nothing was measured."""

    configuration: Configuration
    profile: Profile | None
    choice: Choice | None
    key: Mapping[str, Any]
    simulator: Simulator | None


def key_of(package: Package, device: LoadedDevice, options: LoadOptions) -> dict[str, Any]:
    return identity(package, device.name, device.variant, device.threads, options.activations)


def profile_for(
    package: Package, device: LoadedDevice, options: LoadOptions, setting: Setting, *, force: bool = False
) -> tuple[Profile, bool]:
    """The profile of this machine for the package, and whether it was measured now. ``force`` measures in any case.

    Raises:
        BudgetError: the budget leaves no room for measuring.
        ReadError: the package could not be read.

    """
    key = key_of(package, device, options)
    if not force and (found := store.find(key)) is not None:
        return found, False
    logger.info("measuring this machine for %s, once", package.path)
    profile = probe(package, device, options, setting, key)
    store.keep(profile)
    return profile, True


def configure(
    package: Package,
    device: LoadedDevice,
    options: LoadOptions,
    setting: Setting,
    workloads: Sequence[Workload] | None = None,
) -> Configured:
    """The configuration for a model that is being loaded; what the user has set stays.

    A package below ``PROBED_BYTES`` is not measured for, nor is a device whose pages cannot be timed: without a profile it
    runs with the usual values.
    """
    key = key_of(package, device, options)
    profile = store.find(key) if device.measurable else None
    if profile is None and device.measurable and package.bytes >= PROBED_BYTES:
        try:
            profile, _ = profile_for(package, device, options, setting)
        except BudgetError:
            logger.warning(
                "a budget of %s leaves no room for measuring this machine: the usual configuration is used; "
                "'estream tune' with a larger budget measures once and for all",
                format_bytes(setting.budget),
            )
    if profile is None:
        return Configured(options.apply(Configuration()), None, None, key, None)
    choice = choose(setting, profile, options.given, workloads or usual_workloads(setting))
    return Configured(choice.chosen.configuration, profile, choice, key, Simulator(setting, profile))
