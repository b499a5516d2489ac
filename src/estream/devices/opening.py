"""From a package and options to the device that computes, and to the arrays that it would need."""

from estream.devices.cpu.activations import ActivationPlan, ActivationSizes
from estream.devices.cpu.device import CpuDevice
from estream.devices.qnn.arrays import NpuPlan
from estream.devices.qnn.device import QnnDevice
from estream.engine.activations import ArraysPlan, ArraysPlanner
from estream.engine.batch import BatchShape
from estream.engine.device import LoadedDevice
from estream.engine.memory import ModelMemory
from estream.engine.options import LoadOptions
from estream.errors import DeviceError
from estream.host import limits
from estream.host.kernels import check_kernels
from estream.package.manifest import Manifest
from estream.package.package import Package


def open_device(package: Package, options: LoadOptions) -> LoadedDevice:
    """The device that the options name.

    Raises:
        OptionError: this machine cannot run it as asked.
        DeviceError: the NPU refuses a graph, or the threads cannot be started.

    """
    if options.device == "qnn":
        return QnnDevice(package, options.soc)
    check_kernels()
    threads = options.threads or limits.default_threads()
    try:
        return CpuDevice(package.manifest.config, threads, options.float_activations)
    except (RuntimeError, MemoryError) as error:  # of the native thread pool, which ends those that it has started
        raise DeviceError(f"{threads} threads cannot be started ({error}); ask for fewer with --threads") from error


def open_within_memory(package: Package, options: LoadOptions) -> tuple[LoadedDevice, ModelMemory]:
    """The device, and the model within what this machine grants once the device is open. Raises as :func:`open_device`."""
    device = open_device(package, options)
    planner = arrays_planner(package.manifest, options.float_activations, device.kv_element_bytes)
    return device, ModelMemory(package.manifest, limits.budget_of(options.memory), limits.resident_bytes(), planner)


def arrays_planner(manifest: Manifest, float_activations: bool, kv_element_bytes: int) -> ArraysPlanner:
    """Plans the arrays of the device that a package is made for. The last two arguments concern the CPU alone."""

    def plan(shape: BatchShape) -> ArraysPlan:
        if manifest.npu is not None:
            return NpuPlan.of(manifest.config, manifest.npu.shapes, shape)
        sizes = ActivationSizes(manifest.config, manifest.quantization, shape, float_activations, kv_element_bytes)
        return ActivationPlan(sizes)

    return plan
