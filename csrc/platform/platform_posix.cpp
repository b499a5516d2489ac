#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/vfs.h>
#endif

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <stdexcept>
#include <system_error>

#include "platform/platform.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace estream::platform {

namespace {

constexpr size_t kHugePage = 2u << 20;

size_t round_up(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// A file system may accept O_DIRECT at open and refuse it at the first read.
bool direct_read_works(int handle) {
  void* buffer = nullptr;
  if (posix_memalign(&buffer, kDirectAlignment, kDirectAlignment) != 0) return false;
  ssize_t n;
  do {
    n = pread(handle, buffer, kDirectAlignment, 0);
  } while (n < 0 && errno == EINTR);
  std::free(buffer);
  return n >= 0;
}

int open_retrying(const char* path, int flags) {
  int handle;
  do {
    handle = open(path, flags | O_RDONLY | O_CLOEXEC);
  } while (handle < 0 && errno == EINTR);
  return handle;
}

#if defined(__linux__)
// The magic numbers of tmpfs, ramfs and hugetlbfs.
bool is_memory(const struct statfs& found) {
  const auto kind = static_cast<uint32_t>(found.f_type);
  return kind == 0x01021994u || kind == 0x858458f6u || kind == 0x958458f6u;
}
#endif

bool in_memory(int handle) {
#if defined(__linux__)
  struct statfs found;
  return fstatfs(handle, &found) == 0 && is_memory(found);
#else
  (void)handle;
  return false;
#endif
}

int descriptor(File file) { return static_cast<int>(file.handle); }

// The number behind a label in a file of /proc, times 1024.
uint64_t kibibytes(const char* path, const std::string& label) {
  std::ifstream file(path);
  uint64_t value = 0;
  for (std::string word; file >> word;)
    if (word == label && file >> value) return value * 1024;
  throw std::runtime_error(std::string(path) + " has no " + label + " line; estream needs /proc as Linux has it");
}

}  // namespace

void* reserve(size_t bytes) {
  const size_t whole = round_up(bytes);
  // One more huge page, so that an aligned range lies inside. The rest is returned to the system.
  void* mapped = mmap(nullptr, whole + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<uint8_t*>(mapped);
  auto* aligned = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(begin)));
  if (aligned > begin) munmap(begin, aligned - begin);
  if (const size_t behind = begin + kHugePage - aligned; behind > 0) munmap(aligned + whole, behind);
#if defined(MADV_HUGEPAGE)
  madvise(aligned, whole, MADV_HUGEPAGE);
  madvise(aligned, whole, MADV_DONTFORK);
#endif
  return aligned;
}

void populate(void* address, size_t bytes) {
#if defined(MADV_POPULATE_WRITE)
  if (madvise(address, bytes, MADV_POPULATE_WRITE) == 0) return;
  if (errno == ENOMEM) throw std::bad_alloc();
#endif
  // Kernels before 5.14: touch every page.
  auto* p = static_cast<volatile uint8_t*>(address);
  for (size_t i = 0; i < bytes; i += 4096) p[i] = p[i];
}

void release(void* address, size_t bytes) { munmap(address, round_up(bytes)); }

bool lock(void* address, size_t bytes) {
#if defined(MLOCK_ONFAULT)
  return mlock2(address, bytes, MLOCK_ONFAULT) == 0;
#else
  (void)address, (void)bytes;
  return false;
#endif
}

bool enable_amx() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

ArmFeatures arm_features() {
#if defined(__aarch64__)
  return {(getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0, (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0};
#else
  return {};
#endif
}

File open_for_reading(const std::string& path, bool want_direct) {
#if defined(O_DIRECT)
  if (want_direct) {
    if (const int handle = open_retrying(path.c_str(), O_DIRECT); handle >= 0) {
      if (!in_memory(handle) && direct_read_works(handle)) return {handle, true};
      ::close(handle);
    }
  }
#else
  (void)want_direct;
#endif
  const int handle = open_retrying(path.c_str(), 0);
  if (handle < 0) throw std::system_error(errno, std::generic_category(), path);
  return {handle, false};
}

void close(File file) {
  if (file.handle >= 0) ::close(descriptor(file));
}

bool memory_backed(const std::string& path) {
#if defined(__linux__)
  struct statfs found;
  return statfs(path.c_str(), &found) == 0 && is_memory(found);
#else
  (void)path;
  return false;
#endif
}

int64_t read_at(File file, void* buffer, size_t bytes, uint64_t offset) {
  ssize_t n;
  do {
    n = pread(descriptor(file), buffer, bytes, static_cast<off_t>(offset));
  } while (n < 0 && (errno == EINTR || errno == EAGAIN));
  return n < 0 ? -static_cast<int64_t>(errno) : n;
}

void forget(File file, uint64_t offset, size_t bytes) {
#if defined(POSIX_FADV_DONTNEED)
  posix_fadvise(descriptor(file), static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
#else
  (void)file, (void)offset, (void)bytes;
#endif
}

std::string error_text(int code) { return std::strerror(code); }

ProcessMemory process_memory() {
  constexpr char kStatus[] = "/proc/self/status";
  return {kibibytes(kStatus, "VmRSS:"), kibibytes(kStatus, "VmHWM:")};
}

uint64_t available_memory() { return kibibytes("/proc/meminfo", "MemAvailable:"); }

int usable_processors() {
  // The kernel refuses a mask shorter than its own, so longer ones are tried.
  for (int bits = CPU_SETSIZE; bits <= 1 << 20; bits *= 2) {
    cpu_set_t* mask = CPU_ALLOC(bits);
    const size_t bytes = CPU_ALLOC_SIZE(bits);
    const int count = mask && sched_getaffinity(0, bytes, mask) == 0 ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (count > 0) return count;
  }
  return 1;
}

// kill() would take numbers below 1 for groups of processes.
bool process_lives(int64_t process) { return process > 0 && (kill(static_cast<pid_t>(process), 0) == 0 || errno == EPERM); }

}  // namespace estream::platform
