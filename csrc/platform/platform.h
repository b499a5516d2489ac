// All that differs between operating systems: memory, files read at an offset, what the process and the processor may do.
// platform_posix.cpp is for Linux, platform_windows.cpp for Windows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace estream::platform {

// Reserved, 2 MiB-aligned, zeroed memory that asks for huge pages and is not inherited by a forked child.
// Throws std::bad_alloc.
void* reserve(size_t bytes);
// Backs [address, address + bytes) with memory now. Throws std::bad_alloc.
void populate(void* address, size_t bytes);
void release(void* address, size_t bytes);
// Keeps what will be backed from being swapped out; false where the limit on locked memory does not allow it.
bool lock(void* address, size_t bytes);

// Asks Linux for AMX's tile registers; true where threads begun from now on may use them. Windows builds have no AMX variant.
bool enable_amx();

struct ArmFeatures {
  bool dot_product;      // sdot and udot on eight-bit integers
  bool integer_product;  // smmla, usmmla
};
// All false on other processors.
ArmFeatures arm_features();

struct File {
  intptr_t handle = -1;
  bool direct = false;
};

// What offset, length and address of a direct read must be a multiple of.
constexpr size_t kDirectAlignment = 4096;

// Opens a UTF-8 path for reading past the page cache where the file system can do that, proven by one real read; else
// buffered. Throws std::system_error.
File open_for_reading(const std::string& path, bool want_direct);
void close(File file);

// Reads once at an offset: bytes read (0 at the end of the file), or the negative of the system's number of the error.
// Threads that read from one file do not wait for each other.
int64_t read_at(File file, void* buffer, size_t bytes, uint64_t offset);
// Tells the page cache that the range will not be needed again; for buffered files.
void forget(File file, uint64_t offset, size_t bytes);

// The system's words for an error that read_at returned.
std::string error_text(int code);

struct ProcessMemory {
  uint64_t resident;
  uint64_t peak;  // the most that was resident since the process began, or since its peak was reset
};
// Throws std::runtime_error where the system does not say.
ProcessMemory process_memory();
// Memory of the machine that can be had without swapping. Throws std::runtime_error where the system does not say.
uint64_t available_memory();
// Processors that this process may run on.
int usable_processors();
// Whether a process with this number lives; processes of other users count.
bool process_lives(int64_t process);

}  // namespace estream::platform
