#include <windows.h>
// After windows.h, on which it depends.
#include <psapi.h>

#include <algorithm>
#include <memory>
#include <new>
#include <stdexcept>
#include <system_error>

#include "platform/platform.h"

namespace estream::platform {

namespace {

constexpr size_t kArenaAlignment = 2u << 20;
constexpr size_t kPage = 4096;
constexpr size_t kLargestRead = 1u << 30;

struct CloseHandleOf {
  void operator()(void* handle) const { CloseHandle(handle); }
};
using Handle = std::unique_ptr<void, CloseHandleOf>;

HANDLE native(File file) { return reinterpret_cast<HANDLE>(file.handle); }

int last_error() { return static_cast<int>(GetLastError()); }

std::wstring wide(const std::string& text) {
  const int bytes = static_cast<int>(text.size());
  std::wstring result(MultiByteToWideChar(CP_UTF8, 0, text.data(), bytes, nullptr, 0), L'\0');
  MultiByteToWideChar(CP_UTF8, 0, text.data(), bytes, result.data(), static_cast<int>(result.size()));
  return result;
}

// The handle is overlapped, because reads through an ordinary one wait for each other even on different threads.
File open_with(const std::wstring& path, DWORD flags) {
  constexpr DWORD kShare = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
  const HANDLE handle =
      CreateFileW(path.c_str(), GENERIC_READ, kShare, nullptr, OPEN_EXISTING, FILE_FLAG_OVERLAPPED | flags, nullptr);
  return {reinterpret_cast<intptr_t>(handle), (flags & FILE_FLAG_NO_BUFFERING) != 0};
}

// A volume with sectors larger than kDirectAlignment refuses the read.
bool direct_read_works(File file) {
  void* buffer = VirtualAlloc(nullptr, kDirectAlignment, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (!buffer) return false;
  const int64_t n = read_at(file, buffer, kDirectAlignment, 0);
  VirtualFree(buffer, 0, MEM_RELEASE);
  return n >= 0;
}

}  // namespace

// No large pages, which need a privilege that ordinary users lack. Committing counts against the system's limit, so it fails
// here and not in the middle of a sweep; a page takes memory when it is first written.
void* reserve(size_t bytes) {
  void* whole = VirtualAlloc(nullptr, bytes + kArenaAlignment, MEM_RESERVE, PAGE_NOACCESS);
  if (!whole) throw std::bad_alloc();
  const auto aligned = (reinterpret_cast<uintptr_t>(whole) + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  void* arena = VirtualAlloc(reinterpret_cast<void*>(aligned), bytes, MEM_COMMIT, PAGE_READWRITE);
  if (!arena) {
    VirtualFree(whole, 0, MEM_RELEASE);
    throw std::bad_alloc();
  }
  return arena;
}

void populate(void* address, size_t bytes) {
  auto* p = static_cast<volatile uint8_t*>(address);
  for (size_t i = 0; i < bytes; i += kPage) p[i] = p[i];
}

void release(void* address, size_t) {
  MEMORY_BASIC_INFORMATION about;
  if (VirtualQuery(address, &about, sizeof about) != 0) VirtualFree(about.AllocationBase, 0, MEM_RELEASE);
}

// Locking makes memory resident at once, and it must fit into the minimum working set, which is enlarged first.
bool lock(void* address, size_t bytes) {
  SIZE_T least, most;
  const HANDLE self = GetCurrentProcess();
  return GetProcessWorkingSetSize(self, &least, &most) && SetProcessWorkingSetSize(self, least + bytes, most + bytes) &&
         VirtualLock(address, bytes);
}

ArmFeatures arm_features() {
#if defined(__aarch64__)
  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE and PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE; older headers lack the latter.
  return {IsProcessorFeaturePresent(43) != 0, IsProcessorFeaturePresent(66) != 0};
#else
  return {};
#endif
}

File open_for_reading(const std::string& path, bool want_direct) {
  const std::wstring name = wide(path);
  if (want_direct) {
    if (const File file = open_with(name, FILE_FLAG_NO_BUFFERING); native(file) != INVALID_HANDLE_VALUE) {
      if (direct_read_works(file)) return file;
      close(file);
    }
  }
  const File file = open_with(name, 0);
  if (native(file) == INVALID_HANDLE_VALUE) throw std::system_error(last_error(), std::system_category(), path);
  return file;
}

bool memory_backed(const std::string& path) {
  (void)path;
  return false;  // Windows has no such file systems of its own.
}

void close(File file) {
  if (native(file) != INVALID_HANDLE_VALUE) CloseHandle(native(file));
}

int64_t read_at(File file, void* buffer, size_t bytes, uint64_t offset) {
  // A volume with smaller sectors would accept more; one with 4096 bytes would not.
  if (file.direct && (offset | bytes | reinterpret_cast<uintptr_t>(buffer)) % kDirectAlignment != 0)
    return -ERROR_INVALID_PARAMETER;
  const Handle event(CreateEventW(nullptr, TRUE, FALSE, nullptr));
  if (!event) return -last_error();
  OVERLAPPED place = {};
  place.Offset = static_cast<DWORD>(offset);
  place.OffsetHigh = static_cast<DWORD>(offset >> 32);
  place.hEvent = event.get();
  DWORD done = 0;
  const auto length = static_cast<DWORD>(std::min(bytes, kLargestRead));
  if (ReadFile(native(file), buffer, length, nullptr, &place) || GetLastError() == ERROR_IO_PENDING)
    if (GetOverlappedResult(native(file), &place, &done, TRUE)) return done;
  return GetLastError() == ERROR_HANDLE_EOF ? 0 : -last_error();
}

// Windows counts cached pages of unmapped files as available memory, and to no process.
void forget(File, uint64_t, size_t) {}

std::string error_text(int code) {
  constexpr DWORD kFlags = FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS;
  wchar_t text[512];
  DWORD length = FormatMessageW(kFlags, nullptr, static_cast<DWORD>(code), 0, text, 512, nullptr);
  while (length > 0 && (text[length - 1] <= L' ' || text[length - 1] == L'.')) length--;
  if (length == 0) return "Windows error " + std::to_string(code);
  std::string result(3 * static_cast<size_t>(length), '\0');
  result.resize(WideCharToMultiByte(CP_UTF8, 0, text, static_cast<int>(length), result.data(), static_cast<int>(result.size()),
                                    nullptr, nullptr));
  return result;
}

ProcessMemory process_memory() {
  PROCESS_MEMORY_COUNTERS counters = {};
  if (!GetProcessMemoryInfo(GetCurrentProcess(), &counters, sizeof counters))
    throw std::runtime_error("Windows does not tell the memory of this process: " + error_text(last_error()));
  return {counters.WorkingSetSize, counters.PeakWorkingSetSize};
}

uint64_t available_memory() {
  MEMORYSTATUSEX status = {};
  status.dwLength = sizeof status;
  if (!GlobalMemoryStatusEx(&status))
    throw std::runtime_error("Windows does not tell its available memory: " + error_text(last_error()));
  return std::min(status.ullAvailPhys, status.ullAvailPageFile);
}

// Within the process's own processor group, which has at most 64 processors.
int usable_processors() {
  DWORD_PTR process = 0, system = 0;
  if (!GetProcessAffinityMask(GetCurrentProcess(), &process, &system) || process == 0) return 1;
  return __builtin_popcountll(process);
}

bool process_lives(int64_t process) {
  const Handle handle(OpenProcess(SYNCHRONIZE, FALSE, static_cast<DWORD>(process)));
  if (!handle) return GetLastError() == ERROR_ACCESS_DENIED;
  return WaitForSingleObject(handle.get(), 0) == WAIT_TIMEOUT;
}

}  // namespace estream::platform
