"""The system's limits for a child process that runs what strangers wrote. It imports nothing of estream."""

import sys


def limit_process(memory: int, seconds: int, files: int) -> None:
    """Bound this process for good: address space in bytes, processor seconds, open files; it can write no file.

    Windows has no such limits: there the parent's clock is the only one.
    """
    if sys.platform == "win32":
        return
    import resource

    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_NOFILE, files),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (allowed, allowed))
