"""Sizes as people write them."""

import pytest

from estream.errors import OptionError
from estream.host.sizes import GiB, MiB, format_bytes, parse_bytes


def test_sizes_are_read_and_written():
    assert [parse_bytes(t) for t in ("1GiB", "600 MiB", "1.5g", "2kb", "123")] == [GiB, 600 * MiB, 3 * GiB // 2, 2000, 123]
    for text in ("", "GiB", "1 parsec", "-1", "0", "9" * 400, "1e999", "nan", 10**5000, -(10**5000), 0, 1 << 50):
        with pytest.raises(OptionError):
            parse_bytes(text)
    assert [format_bytes(n) for n in (5, 3 * MiB, 1.5 * GiB)] == ["5 B", "3 MiB", "1.5 GiB"]
