"""The demo model, streamed, and what it answers."""

from pathlib import Path

from estream.api.model import Model
from estream.engine.options import LoadOptions
from estream.host.sizes import KiB
from estream.package.package import Package

IDS = list(range(40, 100))


def streaming(package: Package) -> Model:
    return Model(package, LoadOptions(threads=1, lanes=2, request_bytes=64 * KiB))


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
