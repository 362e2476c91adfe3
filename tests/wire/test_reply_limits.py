"""The limits for the replies to a handshake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redlatch.errors import MasterRefused
from redlatch.wire.reply_limits import Limits


@given(st.lists(st.binary(max_size=20), max_size=5), st.integers(1, 8))
def test_strings_are_skipped_whatever_they_contain(texts: list[bytes], size: int) -> None:
    stream = b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in [b"\r\n*9999999\r\n", *texts]])
    limits = Limits()
    for start in range(0, len(stream), size):
        limits.check(stream[start : start + size])
    with pytest.raises(MasterRefused):
        limits.check(b"*9999999\r\n")
