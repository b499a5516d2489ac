"""Everyday use with trouble: loads, sweeps, batches, cancels, forks, signals, converts, kills of converts, damaged packages.

``python fuzz/soak.py --minutes 60 --seed N``: each answer is compared bit by bit with the first one; threads and open files
must not become more, and no partial package may be left. Prints a line each minute and a summary; exit status 1 for a fault.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

import estream
from estream.api.model import Model
from estream.conversion.convert import convert
from estream.errors import BudgetError, CancelledError, EstreamError, PackageError, ReadError, StateError

DEMO = Path(__file__).resolve().parents[1] / "demo/debian-sections"
MEMORY = ("400MiB", "512MiB", "1GiB", None)


class FaultError(Exception):
    """Something that must never happen."""


class Soak:
    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.faults: list[str] = []
        self._folder = folder
        self.package = convert(DEMO, folder / "demo.estream").path
        self._prompts = [[self.rng.randrange(8192) for _ in range(self.rng.randint(1, 160))] for _ in range(12)]
        with estream.load(self.package) as model:
            self._right = [model.prefill(prompt).logits for prompt in self._prompts]
        self._model: Model | None = None
        self._floor = self._count()
        signal.signal(signal.SIGALRM, lambda *_: None)

    def step(self) -> None:
        """One thing at random."""
        actions: list[tuple[int, Callable[[], None]]] = [
            (30, self.sweep), (10, self.batch), (10, self.reload), (8, self.cancel), (4, self.fork), (8, self.interrupted),
            (2, self.convert_whole), (4, self.convert_killed), (8, self.flipped), (6, self.truncated), (3, self.threads),
            (3, self.small_budget),
        ]  # fmt: skip
        action = self.rng.choices([a for _, a in actions], [w for w, _ in actions])[0]
        try:
            action()
        except EstreamError as error:
            self.faults.append(f"{action.__name__}: refused what is whole: {type(error).__name__}: {error}")
        except Exception as error:
            self.faults.append(f"{action.__name__}: {type(error).__name__}: {error}")
        self.done[action.__name__] += 1

    def model(self) -> Model:
        if self._model is None:
            self._model = estream.load(self.package, memory=self.rng.choice(MEMORY), threads=self.rng.choice((1, 2, None)))
        return self._model

    def close(self) -> None:
        if self._model is not None:
            self._model.close()
        self._model = None

    def _check(self, index: int, logits: np.ndarray) -> None:
        if not np.array_equal(logits, self._right[index]):
            raise FaultError(f"a wrong answer to prompt {index}")

    def sweep(self) -> None:
        index = self.rng.randrange(len(self._prompts))
        self._check(index, self.model().prefill(self._prompts[index]).logits)

    def batch(self) -> None:
        chosen = [self.rng.randrange(len(self._prompts)) for _ in range(self.rng.randint(2, 6))]
        for index, result in zip(chosen, self.model().prefill_batch([self._prompts[i] for i in chosen]), strict=True):
            self._check(index, result.logits)

    def reload(self) -> None:
        self.close()
        self.sweep()

    def cancel(self) -> None:
        model = self.model()
        timer = threading.Timer(self.rng.uniform(0, 0.03), model.cancel)
        timer.start()
        try:
            self.sweep()
        except CancelledError:
            self.refused["cancelled"] += 1
        finally:
            timer.join()
        self.sweep()

    def fork(self) -> None:
        """In the child the model says StateError, and the parent's goes on."""
        model = self.model()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                model.prefill(self._prompts[0])
            except StateError:
                status = 0
            finally:
                os._exit(status)
        self.sweep()
        if os.waitpid(child, 0)[1] != 0:
            raise FaultError("a forked child did not say StateError")

    def interrupted(self) -> None:
        """System calls that end early."""
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
        try:
            self.reload() if self.rng.random() < 0.3 else self.sweep()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def threads(self) -> None:
        """Calls from several threads queue."""
        faults: list[BaseException] = []
        model = self.model()

        def one(index: int) -> None:
            try:
                self._check(index, model.prefill(self._prompts[index]).logits)
            except Exception as error:
                faults.append(error)

        running = [threading.Thread(target=one, args=(index,)) for index in range(4)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if faults:
            raise FaultError(f"{len(faults)} of 4 threads failed: {faults[0]}")

    def small_budget(self) -> None:
        try:
            estream.load(self.package, memory=f"{self.rng.randint(1, 60)}MiB").close()
        except BudgetError:
            self.refused["budget"] += 1
        else:
            raise FaultError("a budget below what Python itself takes was accepted")

    def convert_whole(self) -> None:
        self._use(convert(DEMO, self._folder / "again.estream").path, whole=True)

    def convert_killed(self) -> None:
        """What a killed conversion leaves is no package, and the next conversion works and clears it away."""
        path = self._folder / "killed.estream"
        program = "from estream.cli.main import main; main()"
        command = [sys.executable, "-c", program, "convert", str(DEMO), str(path)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(self.rng.uniform(0.1, 2.5))
        sent = self.rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
        process.send_signal(sent)
        process.wait()
        if path.exists():
            self._use(path, whole=True)
        elif sent != signal.SIGKILL and (left := self._partial()):
            self.faults.append(f"convert_killed: {sent.name} left {left}")
        self._use(convert(DEMO, path).path, whole=True)
        if left := self._partial():
            self.faults.append(f"convert_killed: after the next conversion there is still {left}")
            for name in left:
                shutil.rmtree(self._folder / name, ignore_errors=True)

    def _partial(self) -> list[str]:
        return [p.name for p in self._folder.iterdir() if p.name not in ("demo.estream", "cache")]

    def flipped(self) -> None:
        path = shutil.copytree(self.package, self._folder / "flipped.estream")
        file = self.rng.choice([*path.iterdir(), path / "pages.bin", path / "pages.bin"])
        with open(file, "r+b") as handle:
            at = self.rng.randrange(file.stat().st_size)
            handle.seek(at)
            byte = handle.read(1)[0]
            handle.seek(at)
            handle.write(bytes([byte ^ 1 << self.rng.randrange(8)]))
        self._use(path, whole=False)

    def truncated(self) -> None:
        path = shutil.copytree(self.package, self._folder / "truncated.estream")
        file = self.rng.choice(list(path.iterdir()))
        os.truncate(file, self.rng.randrange(file.stat().st_size))
        self._use(path, whole=False)

    def _use(self, path: Path, whole: bool) -> None:
        """The right answer, or where the package is damaged a clear error. The package is removed."""
        try:
            with estream.load(path, memory="512MiB") as model:
                index = self.rng.randrange(len(self._prompts))
                self._check(index, model.prefill(self._prompts[index]).logits)
        except (PackageError, ReadError):
            if whole:
                raise
            self.refused["damage"] += 1
        finally:
            shutil.rmtree(path)

    def _count(self) -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    def check_still(self) -> None:
        """Without a model there are as many threads and open files as at the beginning."""
        self.close()
        for _ in range(100):
            if all(now <= before for now, before in zip(self._count(), self._floor, strict=True)):
                return
            time.sleep(0.02)
        self.faults.append(f"threads and open files were {self._floor}, are {self._count()}")
        self._floor = self._count()


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak") as folder:
        os.environ["ESTREAM_CACHE"] = f"{folder}/cache"
        soak = Soak(Path(folder), options.seed)
        begin, minute = time.monotonic(), 0
        while (passed := time.monotonic() - begin) < options.minutes * 60:
            soak.step()
            if passed // 60 >= minute:
                minute = int(passed // 60) + 1
                soak.check_still()
                line = f"{soak.done.total()} steps, {len(soak.faults)} faults, {_resident()} MiB"
                print(f"minute {minute - 1}: {line}", flush=True)
                for fault in soak.faults[:3] if soak.faults else ():
                    print(f"  {fault[:300]}", flush=True)
        soak.check_still()
    print(f"seed {options.seed}: {dict(soak.done)}\nrefused, as is right: {dict(soak.refused)}")
    print(f"{len(soak.faults)} faults", *soak.faults, sep="\n  ")
    sys.exit(bool(soak.faults))


if __name__ == "__main__":
    main()
