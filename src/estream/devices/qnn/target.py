"""What stands behind the NPU's interface on this machine."""

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal

from estream.devices.qnn.toolchain import PACKAGES
from estream.errors import OptionError

Target = Literal["npu", "emulator"]
#: Where pip's package holds an emulator of the NPU instead of its driver.
_EMULATED = ("x86_64", "AMD64")


def target() -> Target | None:
    """A real NPU or its emulator. None where there is neither, or where the extra ``qnn`` is not installed."""
    if any(find_spec(name.replace("-", "_")) is None for name in PACKAGES):
        return None
    if platform.machine() in _EMULATED:
        return "emulator"
    from estream.devices.qnn.sessions import has_npu  # loads the runtime

    return "npu" if has_npu() else None


def refuse_times(what: str, device: str) -> None:
    """Raises OptionError where ``device`` is emulated here: the times that ``what`` shows would not be the NPU's."""
    if device == "qnn" and target() == "emulator":
        raise OptionError(f"{what} tells times, and here is only the emulator, whose times are not the NPU's")


def installed() -> dict[str, str]:
    """Versions, by name, of those packages of the toolchain that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
