"""The native tests (csrc/tests): as they are, under sanitizers, for another processor and for Windows."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from paths import ROOT

from estream import _native

AARCH64 = "aarch64-linux-gnu"
MINGW = "x86_64-w64-mingw32"
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def _run(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Temporary files go to ``folder``; every kernel variant is tested, whichever one the caller prefers."""
    env = {key: value for key, value in os.environ.items() if key != "ESTREAM_KERNELS"}
    env.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count()))
    env |= {"TMPDIR": str(folder), **SANITIZER_OPTIONS}
    return subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


def _build(folder: Path, *options: str) -> Path:
    if shutil.which("cmake") is None:
        pytest.skip("building the native tests needs cmake")
    generator = "Ninja" if shutil.which("ninja") else "Unix Makefiles"
    for command in (
        ["cmake", "-S", ROOT, "-B", folder, "-G", generator, "-DESTREAM_TESTS=ON", *options],
        ["cmake", "--build", folder, "--target", "estream_native_test"],
    ):
        result = _run(command, folder)
        assert result.returncode == 0, result.stdout
    return next(file for file in folder.glob("estream_native_test*") if file.suffix in ("", ".exe"))


def _check(program: Sequence[str | Path], folder: Path) -> list[str]:
    """The names of the kernel variants that were tested."""
    result = _run(program, folder)
    assert result.returncode == 0, result.stdout
    assert re.search(r" passed, 0 failed\r?\n$", result.stdout), result.stdout
    kernels = re.search(r"kernels: (.*)", result.stdout)
    assert kernels, result.stdout
    return kernels[1].split()


def _need(packages: str, *tools: str) -> list[Path]:
    """Where these tools are; the test is skipped where one is not."""
    # Debian has wine64 where no path leads.
    found = {tool: shutil.which(tool, path=f"{os.environ['PATH']}:/usr/lib/wine") for tool in tools}
    missing = [tool for tool, path in found.items() if path is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not found; {packages} have them")
    return [Path(path) for path in found.values() if path]


def test_native(tmp_path: Path):
    program = _build(tmp_path)
    _check([program], tmp_path)
    assert _run([program, "arena_is_aligned_zeroed_writable"], tmp_path).stdout.endswith("\n1 passed, 0 failed\n")
    assert _run([program, "absent"], tmp_path).returncode == 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_native_under_sanitizers(sanitizers: str, tmp_path: Path):
    compiler = os.environ.get("CXX", "c++")
    (tmp_path / "probe.cpp").write_text("int main() {}\n")
    probe = _run([compiler, f"-fsanitize={sanitizers}", tmp_path / "probe.cpp", "-o", tmp_path / "probe"], tmp_path)
    if probe.returncode != 0:
        pytest.skip(f"{compiler} has no runtime for -fsanitize={sanitizers}")
    _check([_build(tmp_path / "build", f"-DESTREAM_SANITIZE={sanitizers}")], tmp_path)


@pytest.mark.slow
def test_native_on_aarch64(tmp_path: Path):
    compiler, emulator = _need("packages g++-aarch64-linux-gnu and qemu-user", f"{AARCH64}-g++", "qemu-aarch64")
    system = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={compiler}")
    program = _build(tmp_path, *system)
    emulate = [emulator, "-L", f"/usr/{AARCH64}"]
    assert _check([*emulate, program], tmp_path) == ["neoni8mm", "neondot", "portable"]
    # Processors that lack the newer instructions: choosing must not trust the compiler.
    assert _check([*emulate, "-cpu", "cortex-a76", program], tmp_path) == ["neondot", "portable"]
    older = [*emulate, "-cpu", "cortex-a72", program, "experts_do_not_depend_on_threads_or_company"]
    assert _check(older, tmp_path) == ["portable"]


@pytest.mark.windows
def test_native_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    packages = "packages g++-mingw-w64-x86-64-posix, binutils-mingw-w64-x86-64 and wine64"
    _, objdump, wine = _need(packages, f"{MINGW}-g++-posix", f"{MINGW}-objdump", "wine64")
    program = _build(tmp_path, f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/cmake/x86_64-windows.cmake")
    # Where the stack happens to lie well, a wrong build passes all the same.
    code = _run([objdump, "-d", program], tmp_path)
    assert code.returncode == 0
    assert not re.search(r"vmov(aps|apd|dqa)\w* .*[yz]mm", code.stdout), "GCC aligns no stack on Windows"
    # Without the parts that wait for a download or a display; its own messages are not the program's.
    monkeypatch.setenv("WINEDLLOVERRIDES", "mscoree=;mshtml=;winemenubuilder.exe=")
    monkeypatch.setenv("WINEDEBUG", "-all")
    monkeypatch.setenv("WINEPREFIX", str(tmp_path / "wine"))
    _run([wine, "cmd", "/c", "ver"], tmp_path)
    tested = _check([wine, program], tmp_path)
    assert set(tested) == set(_native.variants()) - {"avx512amx"}


@pytest.mark.windows
def test_native_builds_for_windows_on_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Zig brings the headers and libraries that Debian's compilers lack. Nothing here can run the program."""
    monkeypatch.setenv("ZIG_LOCAL_CACHE_DIR", str(tmp_path / "zig"))
    package = importlib.util.find_spec("ziglang")
    if package is not None and package.origin is not None:
        monkeypatch.setenv("PATH", str(Path(package.origin).parent), prepend=os.pathsep)
    _need("the Python package ziglang would", "zig")
    program = _build(tmp_path / "build", f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/cmake/aarch64-windows.cmake")
    header = program.read_bytes()[:4096]
    at = int.from_bytes(header[60:64], "little")
    assert header[at : at + 6] == b"PE\0\0" + (0xAA64).to_bytes(2, "little")
