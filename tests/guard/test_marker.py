"""Markers: their text, and texts that are no markers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from redlatch.guard.marker import DRAFT, Marker

from .rig import ADDRESSES, Rig, refused


@pytest.mark.parametrize(
    "text", [b"", b"mine", b"{}", b"[]", b'{"redlatch":2}', b'{"redlatch":1}', b"\xff", b"[" * 100_000]
)
def test_another_use_of_the_markers_key_is_refused(text: Any) -> None:
    rig = Rig()
    rig.markers[0] = text
    refused(rig.decide(0), "a marker that is not ours")


def test_a_marker_that_was_edited_by_hand_is_refused() -> None:
    rig = Rig().found()
    text = rig.markers[0]
    assert text is not None
    rig.markers[0] = text.replace(b",", b", ")
    refused(rig.decide(0), "written in another way")


def test_a_marker_is_read_as_it_was_written() -> None:
    marker = Marker("r" * 40, 17, 18, 9000, 7, DRAFT, False, 60_000, False, False, "a:1", ADDRESSES, 5000)
    assert Marker.read(marker.text()) == marker
    with pytest.raises(ValueError, match="other fields"):
        Marker.read(replace(marker, since="17").text())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown stage"):
        Marker.read(replace(marker, stage="begun").text())


@pytest.mark.parametrize("field", ["since", "wall", "max_ttl"])
@pytest.mark.parametrize("number", [-1, 1 << 62])
def test_a_marker_with_a_number_out_of_range_is_refused(field: str, number: Any) -> None:
    marker = Marker("r" * 40, 17, 18, 9000, 7, DRAFT, False, 60_000, False, False, "a:1", ADDRESSES, 5000)
    with pytest.raises(ValueError, match="marker fields out of range"):
        Marker.read(replace(marker, **{field: number}).text())
