"""Standard streams: closed ones take nothing, and no text is refused for the locale's encoding."""

import codecs
import os
import sys

#: How bytes of paths that are not UTF-8 are printed: as they are. What an encoding lacks otherwise is escaped.
_ERRORS = "estream.printing"


def repair() -> None:
    """Make standard output and error usable, whatever the caller passed. A closed standard input stays None.

    The numbers of closed streams are taken by the null device, since a file that got one would receive what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    codecs.register_error(_ERRORS, _printable)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8", errors=_ERRORS))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_ERRORS)


def _printable(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start]
    if "\udc80" <= found <= "\udcff":
        return bytes([ord(found) - 0xDC00]), error.start + 1
    return found.encode("ascii", "backslashreplace").decode(), error.start + 1
