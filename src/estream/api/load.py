"""``estream.load``."""

from pathlib import Path

from estream.api.model import Model
from estream.engine.options import LoadOptions
from estream.host.sizes import parse_bytes
from estream.package.package import open_package


def load(
    path: str | Path,
    memory: str | int | None = None,
    threads: int | None = None,
    device: str = "cpu",
    activations: str = "int8",
    soc: str | None = None,
) -> Model:
    """Load a package for sweeps.

    The first load of a package of 1 GiB or more on a machine measures it for 7 to 10 seconds, says so on the logger
    ``estream``, and keeps the profile in the user's cache folder (``$ESTREAM_CACHE`` where set). Later loads read it there, and
    measure again only where there is a reason to and the machine is idle (docs/configurator.md).

    Args:
        path: the ``NAME.estream`` folder.
        memory: budget of the whole process, such as "1GiB" or a number of bytes; None derives it from the machine.
        threads: compute threads; None takes what affinity and cgroup quota grant.
        device: "cpu", or "qnn" for the NPU (docs/npu.md).
        activations: "int8", the fast path, or "float": float32 activations over the same weights.
        soc: the chip whose NPU is used; None takes the first that the package holds compiled graphs for.

    Raises:
        PackageError: the package is absent, damaged, of another format version, or made for another device.
        ReadError: the package could not be read while the machine was measured.
        BudgetError: the budget is below the floor even for one token.
        OptionError: an argument has no usable value.
        DeviceError: the NPU refuses a graph.

    """
    budget = None if memory is None else parse_bytes(memory)
    options = LoadOptions(budget, threads, device, activations, soc=soc)
    # Before the package is refused for what no package can be made for.
    options.check()
    return Model(open_package(path, device), options)
