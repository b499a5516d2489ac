"""estream: prefill of Mixture-of-Experts models many times larger than the memory it may use."""

from estream import errors
from estream.api.load import load
from estream.api.model import Model
from estream.api.plan import Plan, plan, tune
from estream.api.result import Prefill, TopToken
from estream.conversion.convert import ConvertOptions, convert
from estream.errors import EstreamError
from estream.host.version import VERSION

__version__ = VERSION

__all__ = [
    "ConvertOptions",
    "EstreamError",
    "Model",
    "Plan",
    "Prefill",
    "TopToken",
    "__version__",
    "convert",
    "errors",
    "load",
    "plan",
    "tune",
]
