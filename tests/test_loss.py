"""The losses: their kinds, their texts, and what figures call them."""

from __future__ import annotations

import copy
import pickle

import pytest

import redlatch.loss
from redlatch import Loss, LossKind
from redlatch.loss import COUNTED, RAN_OUT, RELEASED, held_longest, stalled


def test_figures_count_every_kind_but_a_doubt() -> None:
    names = ["expired", "forgotten", "max_hold", "heartbeat", "closed", "other"]
    assert [kind.value for kind in COUNTED] == names


def test_a_loss_is_the_text_that_handlers_got_before() -> None:
    assert RELEASED == "released by close(release=True)"
    assert f"{stalled(31.04)}" == "its process, or event loop, had not run for 31.0 s, so it was not renewed any more"
    assert held_longest(3.0) == "it was held for its max_hold of 3 s, and not renewed any more"


def test_more_about_the_cause_leaves_the_kind_as_it_is() -> None:
    loss = RAN_OUT.because("its last renewal failed: no quorum")
    assert loss == "its validity ran out; its last renewal failed: no quorum"
    assert loss.kind is LossKind.EXPIRED


@pytest.mark.parametrize("copied", [lambda loss: pickle.loads(pickle.dumps(loss)), copy.copy, copy.deepcopy])
def test_a_loss_keeps_its_kind_when_it_is_copied(copied: object) -> None:
    again = copied(stalled(2.0))  # type: ignore[operator]
    assert (again, again.kind) == (stalled(2.0), LossKind.HEARTBEAT)


def test_no_two_losses_have_one_text() -> None:
    texts = [loss for loss in vars(redlatch.loss).values() if isinstance(loss, Loss)]
    assert len(set(texts)) == len(texts) > 5
