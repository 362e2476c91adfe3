"""What the figures call the reasons of losses."""

from __future__ import annotations

import pytest

from redlatch.quorum.losses import (
    FORGOTTEN,
    HELD_LONGEST,
    KEPT_OUT,
    KEY_GONE,
    RAN_OUT,
    RELEASED,
    STALLED,
    label_of,
)


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        (RAN_OUT, "expired"),
        (f"{RAN_OUT}; its last renewal failed: no quorum", "expired"),
        (FORGOTTEN, "forgotten"),
        (KEY_GONE, "forgotten"),
        (KEPT_OUT, "forgotten"),
        (f"{STALLED} 31.0 s, so it was not renewed any more", "heartbeat"),
        (RELEASED, "closed"),
        (f"{HELD_LONGEST} 3 s, and not renewed any more", "max_hold"),
        ("its holder ended without releasing it", "other"),
        ("", "other"),
    ],
)
def test_a_reason_has_a_label_also_if_its_text_goes_on(reason: str, label: str) -> None:
    assert label_of(reason) == label
