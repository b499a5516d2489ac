// What differs between operating systems: memory, files that are read at an offset, facts about the process and the processor.
// platform_posix.cpp is for Linux, platform_windows.cpp for Windows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace estream::platform {

// Reserves zeroed memory, aligned to 2 MiB. On Linux it lies on huge pages where the system grants them, and a forked child
// does not inherit it. Throws std::bad_alloc.
void* reserve(size_t bytes);
// Backs [address, address + bytes) with memory now. Throws std::bad_alloc.
void populate(void* address, size_t bytes);
void release(void* address, size_t bytes);
// Keeps memory, once it is backed, from being swapped out. False where the limit on locked memory forbids it.
bool lock(void* address, size_t bytes);

// Asks Linux for permission to use AMX, for this thread and all that begin later. Returns whether it was given. Windows builds
// have no AMX variant.
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

// Offset, length and address of a direct read must be multiples of this.
constexpr size_t kDirectAlignment = 4096;

// Opens a file; on Windows its path is UTF-8. With want_direct, reads bypass the page cache if one real read shows that the
// file system allows it; else they are buffered. Throws std::system_error.
File open_for_reading(const std::string& path, bool want_direct);
void close(File file);
// Whether the file or folder lies in memory. Such file systems may accept direct reads, which then read no disk.
bool memory_backed(const std::string& path);

// Reads once at an offset. Returns the bytes read, 0 at the end of the file, or the system's error number as a negative number.
// Threads that read from one file do not wait for each other.
int64_t read_at(File file, void* buffer, size_t bytes, uint64_t offset);
// Tells the page cache that a range of a buffered file is not needed again.
void forget(File file, uint64_t offset, size_t bytes);

// The system's message for an error number that read_at returned, given as a positive number.
std::string error_text(int code);

struct ProcessMemory {
  uint64_t resident;
  uint64_t peak;  // the most that was resident since the process began or its peak was reset
};
// Throws std::runtime_error where the system does not say.
ProcessMemory process_memory();
// Memory that the machine can give without swapping. Throws std::runtime_error where the system does not say.
uint64_t available_memory();
// Processors that this process may run on.
int usable_processors();
// Whether a process with this number exists, under any user.
bool process_lives(int64_t process);

}  // namespace estream::platform
