"""Budgets between a model's floor and all of it."""

from estream.devices.opening import arrays_planner
from estream.engine.batch import Batch
from estream.engine.memory import Floor
from estream.host import limits
from estream.host.sizes import MiB
from estream.package.package import Package


def budget(package: Package, prompts: list[list[int]], spare: int) -> int:
    """The floor for a batch, and ``spare`` bytes; far below what the whole model would take."""
    manifest = package.manifest
    activations = arrays_planner(manifest, False, 4)(Batch.of(prompts).shape).bytes
    return Floor.of(limits.resident_bytes() + 2 * MiB, activations, manifest.tape).bytes + spare
