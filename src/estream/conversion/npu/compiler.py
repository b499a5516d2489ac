"""Compiling graphs offline for a named SoC, and the compiler's own account of the memory traffic.

The compiler runs in another process: it logs to stderr, it may crash, and some shapes take it minutes.
"""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from estream.devices.qnn.toolchain import soc_model, toolchain
from estream.errors import DeviceError

_PROCESS = Path(__file__).with_name("compile_process.py")
_TRAFFIC = {"spill": "spill", "fill": "fill", "read": "read_total", "write": "write_total"}


@dataclass(frozen=True)
class Traffic:
    """Bytes that one call moves between DDR and the NPU's own memory, as the compiler counts them.

    ``read`` and ``written`` are all of them. Of these, ``spilled`` and ``filled`` are intermediate values that found no room.
    """

    spilled: int
    filled: int
    read: int
    written: int


@dataclass(frozen=True)
class Compiled:
    """``context`` is an ONNX model that holds the binary for one SoC."""

    context: bytes
    traffic: Traffic


def compile_model(name: str, model: bytes, soc: str, seconds: float = 1200.0) -> Compiled:
    """Compile a graph that :func:`estream.devices.qnn.graphs.build` made.

    Args:
        name: of the graph, for messages.
        model: the ONNX model.
        soc: a key of ``SOCS``.
        seconds: the longest that the compiler may take.

    Raises:
        OptionError: the SoC is not known, or the toolchain not installed.
        DeviceError: the compiler refused the graph, crashed, or took too long.

    """
    number = soc_model(soc)
    toolchain()
    with tempfile.TemporaryDirectory(prefix="estream-qnn-") as folder:
        source, context = Path(folder) / "model.onnx", Path(folder) / "context.onnx"
        source.write_bytes(model)
        command = [sys.executable, str(_PROCESS), str(source), str(context), str(number)]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=seconds, check=False)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise DeviceError(
                f"compiling graph '{name}' for {soc} took more than {seconds:.0f} s: choose smaller tiles"
            ) from error
        log = done.stderr.decode(errors="replace")
        if done.returncode or not context.exists():
            raise DeviceError(f"graph '{name}' cannot be compiled for {soc} (exit {done.returncode}): {_reason(log)}")
        return Compiled(context.read_bytes(), parse_traffic(name, log))


def parse_traffic(name: str, log: str) -> Traffic:
    """Raises DeviceError where the log has no account of the traffic, as that of another release of the compiler."""
    counts = {}
    for key, field in _TRAFFIC.items():
        found = re.findall(rf"\b{field}_bytes=(\d+)", log)
        if not found:
            raise DeviceError(f"compiling graph '{name}': no '{field}_bytes=' in the compiler's log; versions: {toolchain()}")
        counts[key] = sum(map(int, found))
    return Traffic(counts["spill"], counts["fill"], counts["read"], counts["write"])


def _reason(log: str) -> str:
    """The last lines of a log that name errors."""
    lines = [line.strip() for line in log.splitlines() if re.search(r"\[E:|Error|error|FAIL|Exception", line)]
    return " | ".join(line[-300:] for line in lines[-3:]) or "no reason in its log"
