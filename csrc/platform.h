// All that differs between operating systems: memory, files read at an offset, processor affinity.
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

// Asks the system for AMX's tile registers; true where threads begun from now on may use them.
bool enable_amx();

struct File {
  int handle = -1;
  bool direct = false;
};

// Opens for reading past the page cache where the file system can do that, proven by one real read; else buffered.
// Throws std::system_error.
File open_for_reading(const std::string& path, bool want_direct);
void close(File file);

// Reads once at an offset: bytes read (0 at the end of the file), or -errno.
int64_t read_at(File file, void* buffer, size_t bytes, uint64_t offset);
// Tells the page cache that the range will not be needed again; for buffered files.
void forget(File file, uint64_t offset, size_t bytes);

std::string error_text(int code);

}  // namespace estream::platform
