"""The version of estream."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("estream")
except PackageNotFoundError:  # run from a source tree
    VERSION = "0+source"
