"""What a profile was measured under: machine, limits, package. Where any of it differs, the machine is measured again."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from estream import _native
from estream.host import limits, system
from estream.host.disk import disk_limits, disk_of
from estream.host.version import VERSION
from estream.package.manifest import MANIFEST
from estream.package.package import Package

#: Rises when figures are measured in another way, so that those before are not compared with them.
PROBES = 2


def identity(package: Package, device: str, variant: str, threads: int, activations: str) -> dict[str, Any]:
    """Everything that a profile depends on, as plain values."""
    return {
        "estream": VERSION,
        "probes": PROBES,
        "package": package_digest(package),
        "device": device,
        "kernels": variant,
        "threads": threads,
        "activations": activations,
        "processor": system.processor_name(),
        "affinity": _native.usable_processors(),
        "cpu_quota": limits.cpu_quota(),
        "disk": disk_of(package.path),
        "disk_limits": disk_limits(package.path),
    }


def short(key: Mapping[str, Any]) -> str:
    """A name for these values."""
    return hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]


def package_digest(package: Package) -> str:
    """A name for exactly this package."""
    return hashlib.sha256((package.path / MANIFEST).read_bytes()).hexdigest()[:16]
