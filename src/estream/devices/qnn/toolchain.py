"""The vendor's toolchain: its versions, and the chips that it knows."""

from importlib.metadata import PackageNotFoundError, version

from estream.errors import OptionError

#: What pip installs with the extra ``qnn``.
PACKAGES = ("onnx", "onnxruntime", "onnxruntime-qnn")

#: QNN's numbers of the SoCs, by estream's names: Snapdragon 8 Gen 3, 8 Elite, 8 Elite Gen 5 and X Elite.
SOCS = {"sm8650": 57, "sm8750": 69, "sm8850": 87, "x-elite": 60}


def toolchain() -> dict[str, str]:
    """Versions of the packages, by name.

    Raises:
        OptionError: one of them is not installed.

    """
    try:
        return {name: version(name) for name in PACKAGES}
    except PackageNotFoundError as error:
        raise OptionError(f"the NPU needs {error.name}, which is not installed: pip install 'estream[qnn]'") from error


def soc_model(soc: str) -> int:
    """QNN's number of a SoC. Raises OptionError for one that is not known."""
    if soc not in SOCS:
        raise OptionError(f"--soc {soc!r} is not known: choose from {', '.join(SOCS)}")
    return SOCS[soc]
