"""``estream doctor``: the capabilities and limits of this machine."""

import os
import platform
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from estream import _native
from estream.cli.output import print_json, print_pairs
from estream.devices.qnn.target import installed, target
from estream.errors import EstreamError
from estream.host import limits, system
from estream.host.kernels import check_kernels
from estream.host.sizes import MiB, format_bytes

#: Bytes of the probe: less where little is free, none where that would say nothing.
_PROBE_BYTES, _LEAST_PROBE_BYTES = 256 * MiB, 8 * MiB
_SHARE_OF_FREE = 4
_BLOCK = 4 * MiB
_NPU = {
    "npu": "a Qualcomm NPU, ready",
    "emulator": "none, but Qualcomm's emulator: correct results, no meaningful times",
    None: "none found; pip install 'estream[qnn]' brings Qualcomm's driver or its emulator",
}


def doctor_command(
    folder: Annotated[
        Path, typer.Option("--folder", help="Where packages lie: its storage is probed with 256 MiB at most.")
    ] = Path(),
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
            "storage": f"{storage['folder']}: {_storage_words(storage)}",
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


def _storage_words(storage: dict[str, Any]) -> str:
    if storage["not_probed"]:
        return f"not probed: {storage['not_probed']}"
    how = "direct I/O" if storage["direct_io"] else "no direct I/O, reads are buffered"
    if storage["memory_backed"]:
        how = "memory-backed, so there is no disk to read"
    rates = (
        f", {format_bytes(rate)}/s with {lanes} lane{'s'[: lanes != '1']}"
        for lanes, rate in storage["read_bytes_per_s"].items()
    )
    return how + "".join(rates)


def _probe_storage(folder: Path) -> dict[str, Any]:
    """Write a file without a name, then time direct reads of it with 1, 4 and 8 lanes. What prevents that is said."""
    facts: dict[str, Any] = {
        "folder": str(folder.absolute()),
        "memory_backed": _native.memory_backed(folder),
        "direct_io": None,
        "probe_bytes": 0,
        "read_bytes_per_s": {},
        "not_probed": None,
    }
    # In memory-backed folders the file counts as memory too.
    room = min(limits.free_bytes(), shutil.disk_usage(folder).free)
    size = min(_PROBE_BYTES, room // _SHARE_OF_FREE // _BLOCK * _BLOCK)
    if size < _LEAST_PROBE_BYTES:
        return facts | {"not_probed": f"only {format_bytes(room)} of memory or storage are free"}
    try:
        direct, rates = _read_rates(folder, size)
    except (OSError, MemoryError) as error:
        return facts | {"not_probed": getattr(error, "strerror", None) or "out of memory"}
    return facts | {"direct_io": direct, "probe_bytes": size, "read_bytes_per_s": rates}


def _read_rates(folder: Path, size: int) -> tuple[bool, dict[str, float]]:
    """Whether reads are direct, and bytes per second for each number of lanes."""
    with system.nameless_file(folder) as (handle, path):
        block = np.random.default_rng(0).integers(0, 256, _BLOCK, dtype=np.uint8)
        for offset in range(0, size, _BLOCK):
            written = 0
            while written < _BLOCK:
                written += os.write(handle, block[written:].data)
            # Written out at once, since pages that wait for it cannot be reclaimed in a small control group.
            os.fsync(handle)
            system.forget(handle, offset, _BLOCK)
        arena = _native.Arena(size)
        arena.populate(0, size)
        rates, direct = {}, False
        for lanes in (1, 4, 8):
            reader = _native.Reader([path], lanes, 2 * MiB, True)
            direct = bool(reader.direct(0))
            begin = time.perf_counter()
            ticket = reader.submit(0, 0, arena.address, size, [(0, size, 0, False)])
            while (outcome := reader.wait(ticket, 1.0))[0] == "pending":
                pass
            if outcome[0] != "ready":
                raise OSError(outcome[1], _native.error_text(outcome[1]) if outcome[1] else "the file could not be read again")
            rates[str(lanes)] = size / (time.perf_counter() - begin)
    return direct, rates
