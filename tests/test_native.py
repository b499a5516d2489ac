"""The native tests (csrc/tests): as they are, under sanitizers, and for another processor under its emulator."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
AARCH64 = "aarch64-linux-gnu"
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
    return folder / "estream_native_test"


def _check(program: Sequence[str | Path], folder: Path) -> None:
    result = _run(program, folder)
    assert result.returncode == 0, result.stdout
    assert result.stdout.endswith(" passed, 0 failed\n")


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
    compiler, emulator = f"{AARCH64}-g++", "qemu-aarch64"
    missing = [tool for tool in (compiler, emulator) if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not found; packages g++-aarch64-linux-gnu and qemu-user have them")
    system = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={compiler}")
    program = _build(tmp_path, *system)
    _check([emulator, "-L", f"/usr/{AARCH64}", program], tmp_path)
