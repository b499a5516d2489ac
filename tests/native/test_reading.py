"""What the reader's bindings refuse, before native code would go wrong by it."""

from pathlib import Path

import pytest

from estream import _native

SIZE = 2 << 20
LAST = (1 << 63) - 1


@pytest.fixture
def arena() -> _native.Arena:
    return _native.Arena(SIZE)


@pytest.fixture
def reader(tmp_path: Path) -> _native.Reader:
    (tmp_path / "a").write_bytes(bytes(range(256)) * 32)
    return _native.Reader([tmp_path / "a"], 2, 4096, False)


@pytest.mark.parametrize("file", [-1, 1, 2, 1 << 30, -(1 << 31)])
def test_files_that_are_not_there(file: int, reader: _native.Reader, arena: _native.Arena):
    for ask in (
        lambda: reader.direct(file),
        lambda: reader.submit(file, 0, arena.address, 4096, [(0, 4096, 0, False)]),
        lambda: reader.gather(file, [(0, arena.address, 16)]),
    ):
        with pytest.raises(IndexError):
            ask()
    for ask in (lambda: reader.direct(1 << 40), lambda: reader.direct("a")):
        with pytest.raises(TypeError):
            ask()


@pytest.mark.parametrize(
    ("offset", "length", "pages"),
    [
        (0, 4096, []),
        (0, 0, [(0, 0, 0, False)]),
        (0, 4096, [(0, 0, 0, False)]),
        (0, 4096, [(1, 4096, 0, False)]),
        (0, 4096, [((1 << 64) - 1, 2, 0, False)]),
        (0, 4096, [(2, (1 << 64) - 2, 0, False)]),
        (0, 4096, [(0, 64, 0, False), (32, 64, 0, False)]),
        (LAST, 4096, [(0, 4096, 0, False)]),
        (0, 1 << 63, [(0, 4096, 0, False)]),
    ],
)
def test_runs_that_cannot_be(offset: int, length: int, pages: list, reader: _native.Reader, arena: _native.Arena):
    with pytest.raises(ValueError, match="run|rise"):
        reader.submit(0, offset, arena.address, length, pages)
    with pytest.raises(ValueError, match="address"):
        reader.submit(0, 0, 0, 4096, [(0, 4096, 0, False)])


@pytest.mark.parametrize("part", [(0, 0, 16), (LAST, 1, 16), (0, 1, 0), (0, 1, 1 << 63)])
def test_parts_that_cannot_be(part: tuple[int, int, int], reader: _native.Reader):
    with pytest.raises(ValueError, match="part"):
        reader.gather(0, [part])
    with pytest.raises(ValueError, match="nothing"):
        reader.gather(0, [])


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), -1.0, 1e300])
def test_waits_that_do_not_end(timeout: float, reader: _native.Reader, arena: _native.Arena):
    ticket = reader.gather(0, [(0, arena.address, 16)])
    with pytest.raises(ValueError, match="timeout"):
        reader.wait(ticket, timeout)
    with pytest.raises(IndexError):
        reader.wait(ticket + 1, 0)
    assert reader.wait(ticket, 10)[0] == "ready"
    assert bytes(arena.bytes()[:16]) == bytes(range(16))


def test_paths_may_be_text_bytes_or_path_objects(tmp_path: Path):
    name = bytes(tmp_path) + b"/\xff\xfe"
    Path(name.decode("utf-8", "surrogateescape")).write_bytes(b"x" * 4096)
    for path in (name, name.decode("utf-8", "surrogateescape"), Path(name.decode("utf-8", "surrogateescape"))):
        assert _native.Reader([path], 1, 4096, False).direct(0) is False
    for wrong in ("a\0b", 5, None):
        with pytest.raises((ValueError, TypeError)):
            _native.Reader([wrong], 1, 4096, False)
    for size in (0, 4095, 2 << 30):
        with pytest.raises(ValueError, match="request_bytes"):
            _native.Reader([name], 1, size, False)


def test_files_in_memory_are_not_read_directly(tmp_path: Path):
    if not _native.memory_backed("/dev/shm"):
        pytest.skip("/dev/shm is no tmpfs here")
    file = Path("/dev/shm/estream test memory")
    file.write_bytes(bytes(8192))
    try:
        assert _native.memory_backed(file)
        assert _native.Reader([file], 1, 4096, True).direct(0) is False
    finally:
        file.unlink()
    assert not _native.memory_backed(tmp_path / "absent")
