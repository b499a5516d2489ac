"""The arrays of a sweep, by the device that a package is made for: sizes alone, without a device."""

from estream.devices.qnn.arrays import NpuPlan
from estream.engine.activations import SweepPlan, plan_activations
from estream.engine.batch import Batch
from estream.package.manifest import Manifest


def plan_sweep(manifest: Manifest, batch: Batch, float_activations: bool, kv_element_bytes: int) -> SweepPlan:
    """The arrays that one sweep of ``batch`` needs; the last two arguments concern the CPU device."""
    if manifest.npu is not None:
        return NpuPlan.of(manifest.config, manifest.npu.shapes, batch)
    return plan_activations(manifest.config, manifest.quantization, batch, float_activations, kv_element_bytes)
