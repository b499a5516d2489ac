"""Which kernel variant computes: the fastest for this processor, or the one that the user names."""

import os

from estream import _native
from estream.errors import OptionError

_VARIABLE = "ESTREAM_KERNELS"


def check_kernels() -> None:
    """Raises OptionError where ``ESTREAM_KERNELS`` names a variant that this machine cannot run."""
    name, offered = os.environ.get(_VARIABLE), list(_native.variants())
    if name and name not in offered:
        raise OptionError(f"{_VARIABLE} is '{name}', but this machine offers {', '.join(offered)}")
