"""estream: prefill of Mixture-of-Experts models many times larger than the memory it may use."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("estream")
except PackageNotFoundError:  # run from a source tree
    __version__ = "0+source"

from estream import errors
from estream.configurator.plan import Plan, plan, tune
from estream.conversion import ConvertOptions, convert
from estream.engine.loading import load
from estream.engine.model import Model
from estream.engine.result import Prefill, TopToken
from estream.errors import EstreamError

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
