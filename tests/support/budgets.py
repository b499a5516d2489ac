"""Budgets between a model's floor and all of it."""

from estream.engine import activations, memory
from estream.engine.batch import Batch
from estream.host import limits
from estream.host.sizes import MiB
from estream.package.package import Package


def budget(package: Package, prompts: list[list[int]], spare: int) -> int:
    """The floor for a batch, and ``spare`` bytes; far below what the whole model would take."""
    manifest = package.manifest
    plan = activations.plan_activations(manifest.config, manifest.quantization, Batch.of(prompts), False)
    return memory.Floor.of(limits.resident_bytes() + 2 * MiB, plan.bytes, manifest.tape).bytes + spare
