"""From a package and options to the device that computes."""

from estream.devices.cpu.device import CpuDevice
from estream.devices.qnn.device import QnnDevice
from estream.engine.device import LoadedDevice
from estream.engine.options import LoadOptions
from estream.errors import OptionError
from estream.host import limits
from estream.package.package import Package


def open_device(package: Package, options: LoadOptions) -> LoadedDevice:
    """The device that the options name.

    Raises:
        OptionError: this machine cannot run it as asked.
        DeviceError: the NPU refuses a graph.

    """
    if options.device == "qnn":
        return QnnDevice(package, options.soc)
    threads = options.threads or limits.default_threads()
    try:
        return CpuDevice(package.manifest.config, threads, options.activations == "float")
    except RuntimeError as error:  # an ESTREAM_KERNELS that this machine cannot run
        raise OptionError(str(error)) from error
