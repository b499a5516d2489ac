"""The version of estream that runs."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("estream")
except PackageNotFoundError:  # run from a source tree
    VERSION = "0+source"
