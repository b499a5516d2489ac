"""Conversion against its bounds, reading the source and writing the package.

    python benchmarks/convert.py --folder /large/disk --shape olmoe-1b-7b --gigabytes 4

Writes a checkpoint of random bfloat16 weights in shards (a published shape with as many layers as fit), then times, one after
another: reading it (direct, as many reads in flight as the converter has), writing as many bytes as the package has, and
converting it in a process of its own. All that was written is deleted. Needs about 1.6 times --gigabytes of free disk.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from estream.checkpoint.source_file import read_bytes
from estream.conversion.convert import READING, all_refs
from estream.conversion.synth import SHAPES
from estream.host.direct_file import DirectFile
from estream.models import family_of
from estream.package.package import Package, open_package

SHARD_BYTES = 2 << 30
CHUNK = 16 << 20


def config_of(shape: str, gigabytes: float) -> dict:
    """The published config with the number of layers that comes nearest to the size."""
    values = dict(SHAPES[shape])

    def size(layers: int) -> int:
        config = family_of(values).read_config(values | {"num_hidden_layers": layers})
        return sum(2 * int(np.prod(ref.shape)) for ref in all_refs(family_of(values).tensors(config, frozenset())))

    one = size(2) - size(1)
    return values | {"num_hidden_layers": max(1, round((gigabytes * 1e9 - size(1)) / one) + 1)}


def write_checkpoint(folder: Path, values: dict) -> int:
    """Shards of random bfloat16 weights; returns their bytes."""
    (folder / "config.json").write_text(json.dumps(values))
    family = family_of(values)
    refs = list(all_refs(family.tensors(family.read_config(values), frozenset())))
    rng = np.random.default_rng(0)
    noise = ((rng.standard_normal(1 << 25, dtype=np.float32) * 0.02).view(np.uint32) >> 16).astype(np.uint16)
    total = shard = 0
    while refs:
        header, offset, taken = {}, 0, []
        while refs and offset < SHARD_BYTES:
            ref = refs.pop(0)
            size = 2 * int(np.prod(ref.shape))
            header[ref.name] = {"dtype": "BF16", "shape": ref.shape, "data_offsets": [offset, offset + size]}
            taken.append(size // 2)
            offset += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / f"model-{shard:05}.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for count in taken:
                while count:
                    step = min(count, len(noise) // 2)
                    start = int(rng.integers(0, len(noise) - step))
                    file.write(noise[start : start + step].data)
                    count -= step
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        total, shard = total + offset, shard + 1
    return total


def time_reading(folder: Path) -> float:
    begin = time.perf_counter()
    with ThreadPoolExecutor(READING.workers) as pool:
        for file in sorted(folder.glob("*.safetensors")):
            size = file.stat().st_size
            offsets = range(0, size, CHUNK)
            for _ in pool.map(lambda at, f=file, n=size: read_bytes(f, at, min(CHUNK, n - at)).size, offsets):
                pass
    return time.perf_counter() - begin


def time_writing(path: Path, size: int) -> float:
    data = np.random.default_rng(0).integers(0, 256, CHUNK, dtype=np.uint8)
    begin = time.perf_counter()
    with DirectFile(path) as file:
        for _ in range(-(-size // CHUNK)):
            file.write(data)
        file.sync()
    seconds = time.perf_counter() - begin
    path.unlink()
    return seconds


def time_converting(source: Path, target: Path) -> tuple[float, float, int, Package]:
    """Seconds, seconds of processor time on all cores, the peak of resident memory in bytes, and the package."""
    command = [sys.executable, "-c", "from estream.cli.main import main; main()", "convert", source, target]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, processor, after.ru_maxrss * 1024, open_package(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--shape", default="olmoe-1b-7b", choices=SHAPES)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--repeat", type=int, default=2)
    args = parser.parse_args()
    free = shutil.disk_usage(args.folder).free
    if free < 1.6e9 * args.gigabytes:
        parser.error(f"{args.folder} has {free / 1e9:.0f} GB free, {1.6 * args.gigabytes:.0f} are needed")
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="estream-convert-") as name:
        folder = Path(name)
        (folder / "source").mkdir()
        size = write_checkpoint(folder / "source", config_of(args.shape, args.gigabytes))
        print(f"{args.shape}: {size / 1e9:.1f} GB of bfloat16", flush=True)
        for _ in range(args.repeat):
            reading = time_reading(folder / "source")
            seconds, processor, peak, package = time_converting(folder / "source", folder / "out.estream")
            written = package.bytes
            shutil.rmtree(folder / "out.estream")
            writing = time_writing(folder / "written", written)
            print(
                f"read {reading:.1f} s ({size / reading / 1e9:.2f} GB/s), write {writing:.1f} s "
                f"({written / writing / 1e9:.2f} GB/s), convert {seconds:.1f} s: {seconds / max(reading, writing):.2f} times "
                f"the longer, {processor:.1f} s of processor time, peak {peak / 2**20:.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
