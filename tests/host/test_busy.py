"""What others take of processors and disk."""

import multiprocessing
import time
from pathlib import Path

import pytest

from estream.host import busy, disk, system
from estream.host.busy import Counters, Others, between
from estream.host.disk import DiskCounters

STAT = "cpu 1 2 3 4 5 6 7 8 0 0\ncpu0 {0} 0 0 {1} 0 0 0 0 0 0\ncpu1 {2} 0 0 {3} 0 0 0 {4} 0 0\ncpu2 999 0 0 0 0 0 0 0\nintr 5\n"


def _counters(at: float, own_s: float = 0.0, used: int = 0, disk_bytes: int = 0, own_bytes: int = 0) -> Counters:
    return Counters(at, own_s, (used, round(at * 200)), 2, DiskCounters(disk_bytes, at / 2), own_bytes)


def test_what_this_process_did_itself_is_not_counted():
    others = between(_counters(0), _counters(1, own_s=1.5, used=150, disk_bytes=1000, own_bytes=1000))
    assert others == Others(0.0, 0.0)
    assert not others.busy


def test_a_neighbour_takes_a_share_of_processors_and_disk():
    others = between(_counters(0), _counters(1, own_s=1.0, used=200, disk_bytes=1000, own_bytes=250))
    assert others == Others(0.5, 0.375)
    assert others.busy
    assert str(others) == "50% of the processors, 38% of the disk"


def test_a_moment_too_short_and_counters_that_are_absent_are_unknown():
    assert between(_counters(0), _counters(0.01)) == Others(None, None)
    nothing = Counters(0, 0, (0, 0), 0, None, None)
    unknown = between(nothing, Counters(1, 0, (0, 0), 0, None, None))
    assert (unknown, unknown.busy, unknown.share, str(unknown)) == (Others(None, None), False, None, "unknown")
    assert Others.mean([Others(0.2, None), Others(0.4, None), Others(None, None)]) == Others(pytest.approx(0.3), None)


def test_stolen_time_counts_and_processors_of_others_do_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(busy, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(system, "processor_numbers", lambda: frozenset({0, 1}))
    (tmp_path / "stat").write_text(STAT.format(10, 20, 30, 40, 5))
    assert busy.count(tmp_path).ticks == (45, 105)
    (tmp_path / "stat").write_text("no numbers\ncpu0 x\n")
    assert busy.count(tmp_path).ticks == (0, 0)


def test_a_file_system_that_hides_its_disk_has_the_counters_of_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    row = "{} {} {} 1 0 {} 0 1 0 {} 0 0 {} 0\n"
    (tmp_path / "diskstats").write_text(row.format(7, 0, "loop0", 9, 9, 9) + row.format(8, 0, "sda", 100, 50, 2000) + "odd\n")
    monkeypatch.setattr(disk, "_DISKSTATS", tmp_path / "diskstats")
    monkeypatch.setattr(disk, "_exists", lambda path: path == Path("/sys/block/sda/device"))
    for number in ("0:77", "8:0"):
        monkeypatch.setattr(system, "device_number", lambda _, n=number: n)
        assert disk.disk_counters(tmp_path) == DiskCounters(512 * 150, 2.0)
    assert disk.disk_counters(tmp_path / "removed") is None
    (tmp_path / "diskstats").write_text("")
    assert disk.disk_counters(tmp_path) is None


def _work() -> None:
    while True:
        pass


def test_a_real_neighbour_is_seen(tmp_path: Path):
    if not system.processor_numbers():
        pytest.skip("this system does not count the work of processors")
    context = multiprocessing.get_context("spawn")
    neighbours = [context.Process(target=_work, daemon=True) for _ in range(len(system.processor_numbers()))]
    for neighbour in neighbours:
        neighbour.start()
    try:
        end = time.monotonic() + 60
        while not (seen := busy.look(tmp_path)).busy and time.monotonic() < end:
            pass
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.join()
    assert seen.busy


def test_one_process_holds_a_file_at_a_time(tmp_path: Path):
    path = tmp_path / "a.lock"
    with system.hold_file(path, 0.0) as first, system.hold_file(path, 0.1) as second:
        assert (first, second) == (True, False)
    with system.hold_file(path, 0.0) as again:
        assert again
    for unusable in (None, tmp_path / "absent/a.lock"):
        with system.hold_file(unusable, 0.0) as granted, system.hold_file(unusable, 0.0) as too:
            assert granted
            assert too
