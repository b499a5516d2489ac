"""Libraries that stand between a program and its system: reads that fail, file systems without direct reads."""

import os
import subprocess
import sys
from pathlib import Path

#: One in FAULT_EVERY reads of large files fails in the way that FAULT names; faults_made() counts them.
FAULTY_READS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static unsigned long faults;
unsigned long faults_made(void) { return __atomic_exchange_n(&faults, 0, __ATOMIC_RELAXED); }
ssize_t pread64(int fd, void *buffer, size_t bytes, off_t offset) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  static unsigned long calls;
  if (!real) real = (ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
  const char *fault = getenv("FAULT");
  struct stat s;
  if (!fault || fstat(fd, &s) || s.st_size < 4000000) return real(fd, buffer, bytes, offset);
  unsigned long call = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
  if (call % strtoul(getenv("FAULT_EVERY"), 0, 10)) return real(fd, buffer, bytes, offset);
  __atomic_add_fetch(&faults, 1, __ATOMIC_RELAXED);
  if (!strcmp(fault, "eio")) { errno = EIO; return -1; }
  if (!strcmp(fault, "eintr")) { errno = EINTR; return -1; }
  if (!strcmp(fault, "short")) return real(fd, buffer, bytes > 4096 ? 4096 : bytes, offset);
  if (!strcmp(fault, "odd")) return real(fd, buffer, bytes, offset) > 9000 ? 4999 : (ssize_t)bytes;
  if (!strcmp(fault, "end")) return 0;
  return real(fd, buffer, bytes, offset);
}
ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset) { return pread64(fd, buffer, bytes, offset); }
"""

#: Direct I/O is refused as file systems do: REFUSED_AT says whether when opening ("open") or at the first read ("read").
NO_DIRECT_READS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static unsigned long faults;
unsigned long faults_made(void) { return __atomic_exchange_n(&faults, 0, __ATOMIC_RELAXED); }
static int refused(const char *where, int flags) {
  const char *at = getenv("REFUSED_AT");
  if (!(flags & O_DIRECT) || !at || strcmp(at, where)) return 0;
  __atomic_add_fetch(&faults, 1, __ATOMIC_RELAXED);
  errno = EINVAL;
  return 1;
}
int open64(const char *path, int flags, ...) {
  static int (*real)(const char *, int, mode_t);
  if (!real) real = (int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, "open64");
  va_list rest;
  va_start(rest, flags);
  mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return refused("open", flags) ? -1 : real(path, flags, mode);
}
int open(const char *path, int flags, ...) __attribute__((alias("open64")));
int __open_2(const char *path, int flags) { return open64(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }
ssize_t pread64(int fd, void *buffer, size_t bytes, off_t offset) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  if (!real) real = (ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
  return refused("read", fcntl(fd, F_GETFL)) ? -1 : real(fd, buffer, bytes, offset);
}
ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset) { return pread64(fd, buffer, bytes, offset); }
"""

#: The same for reads into several buffers and for writes: REFUSED_AT holds "open", "read", "write", or several of them.
NO_DIRECT = (
    NO_DIRECT_READS.replace("strcmp(at, where)", "!strstr(at, where)")
    + r"""
#include <sys/uio.h>
ssize_t preadv64(int fd, const struct iovec *parts, int count, off_t offset) {
  static ssize_t (*real)(int, const struct iovec *, int, off_t);
  if (!real) real = (ssize_t (*)(int, const struct iovec *, int, off_t))dlsym(RTLD_NEXT, "preadv64");
  return refused("read", fcntl(fd, F_GETFL)) ? -1 : real(fd, parts, count, offset);
}
ssize_t preadv(int fd, const struct iovec *parts, int count, off_t offset) { return preadv64(fd, parts, count, offset); }
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
  static ssize_t (*real)(int, const struct iovec *, int, off_t, int);
  if (!real) real = (ssize_t (*)(int, const struct iovec *, int, off_t, int))dlsym(RTLD_NEXT, "preadv64v2");
  return refused("read", fcntl(fd, F_GETFL)) ? -1 : real(fd, parts, count, offset, flags);
}
ssize_t write(int fd, const void *buffer, size_t bytes) {
  static ssize_t (*real)(int, const void *, size_t);
  if (!real) real = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
  return refused("write", fcntl(fd, F_GETFL)) ? -1 : real(fd, buffer, bytes);
}
"""
)


def build(source: str, folder: Path) -> Path:
    """The library of this C source, in a folder of its own."""
    (folder / "preloaded.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "preloaded.so", folder / "preloaded.c", "-ldl"], check=True)
    return folder / "preloaded.so"


def run_behind(library: Path, program: str, *arguments: str | Path, **environment: str) -> str:
    """What a piece of Python prints that reaches its system through the library."""
    env = os.environ | {"LD_PRELOAD": str(library)} | environment
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
