# Cross-compiles for Windows on Arm with Zig's C++ compiler (pip install ziglang has it, as `python-zig`), since Debian has none:
#   cmake -S . -B build-windows -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-windows.cmake -DESTREAM_TESTS=ON
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR ARM64)
set(CMAKE_CXX_COMPILER zig c++)
set(CMAKE_CXX_COMPILER_TARGET aarch64-windows-gnu)
set(CMAKE_CXX_ARCHIVE_CREATE "zig ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "")
set(ESTREAM_ARM_TARGET "-mcpu=generic") # Zig has no -march=armv8.2-a
