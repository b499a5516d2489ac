"""``estream doctor``: the capabilities and limits of this machine."""

import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from estream import _native
from estream.cli.output import print_json, print_pairs
from estream.devices.qnn.target import installed, target
from estream.errors import EstreamError
from estream.host import limits
from estream.host.kernels import check_kernels
from estream.host.sizes import MiB, format_bytes

_PROBE_BYTES = 256 * MiB
_NPU = {
    "npu": "a Qualcomm NPU, ready",
    "emulator": "none, but Qualcomm's emulator: correct results, no meaningful times",
    None: "none found; pip install 'estream[qnn]' brings Qualcomm's driver or its emulator",
}


def doctor_command(
    folder: Annotated[Path, typer.Option("--folder", help="Where packages lie: its storage is probed with 256 MiB.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show what this machine offers: instruction sets, direct I/O, memory and CPU limits, storage speed, NPU."""
    if not folder.is_dir():
        raise EstreamError(f"{folder}: no such folder")
    facts = _facts(folder)
    if as_json:
        print_json(facts)
        return
    limit = facts["memory"]["cgroup_limit"]
    storage = facts["storage"]
    print_pairs(
        "",
        {
            "machine": facts["machine"],
            "kernels": f"{facts['kernels']['chosen']} (available: {', '.join(facts['kernels']['available'])})",
            "threads": f"{facts['cpu']['threads']} ({facts['cpu']['affinity']} in the affinity mask, "
            + (f"cgroup quota {facts['cpu']['quota']:g})" if facts["cpu"]["quota"] else "no cgroup quota)"),
            "memory": f"{format_bytes(facts['memory']['available'])} available, "
            + (f"cgroup limit {format_bytes(limit)}" if limit else "no cgroup limit"),
            "default budget": format_bytes(facts["memory"]["default_budget"]),
            "storage": f"{storage['folder']}: "
            + ("direct I/O" if storage["direct_io"] else "no direct I/O, reads are buffered")
            + "".join(f", {format_bytes(rate)}/s with {lanes} lanes" for lanes, rate in storage["read_bytes_per_s"].items()),
            "NPU": _NPU[facts["npu"]["target"]],
        },
    )


def _facts(folder: Path) -> dict[str, Any]:
    check_kernels()
    group = limits.cgroup_memory()
    return {
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "kernels": {"chosen": str(_native.CpuDevice(1).variant), "available": list(_native.variants())},
        "cpu": {
            "affinity": _native.usable_processors(),
            "quota": limits.cpu_quota(),
            "threads": limits.default_threads(),
        },
        "memory": {
            "available": limits.available_bytes(),
            "cgroup_limit": group.limit if group else None,
            "default_budget": limits.default_budget(),
        },
        "storage": _probe_storage(folder),
        "npu": {"target": target(), "packages": installed()},
    }


def _probe_storage(folder: Path) -> dict[str, Any]:
    """Write a temporary file, then time direct reads of it with 1, 4 and 8 lanes."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".estream-doctor-") as file:
            block = np.random.default_rng(0).integers(0, 256, 16 * MiB, dtype=np.uint8)
            for _ in range(_PROBE_BYTES // len(block)):
                file.write(block.data)
            file.flush()
            os.fsync(file.fileno())
            arena = _native.Arena(_PROBE_BYTES)
            arena.populate(0, _PROBE_BYTES)
            rates, direct = {}, False
            for lanes in (1, 4, 8):
                reader = _native.Reader([file.name], lanes, 2 * MiB, True)
                direct = bool(reader.direct(0))
                begin = time.perf_counter()
                ticket = reader.submit(0, 0, arena.address, _PROBE_BYTES, [(0, _PROBE_BYTES, 0, False)])
                while reader.wait(ticket, 1.0)[0] == "pending":
                    pass
                rates[str(lanes)] = _PROBE_BYTES / (time.perf_counter() - begin)
    except OSError as error:
        raise EstreamError(f"{folder}: the storage cannot be probed ({error.strerror})") from error
    return {"folder": str(folder.absolute()), "direct_io": direct, "read_bytes_per_s": rates}
