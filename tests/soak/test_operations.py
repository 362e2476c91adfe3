"""A few operations of each kind. For more of them: `make operations TIMES=1000`."""

from __future__ import annotations

import sys

import pytest

from soak.campaign import Campaign
from soak.sites import SITES
from soak.worker import Options

TIMES = {"move": 1, "failover": 1, "rolling": 1, "rolling-failover": 1}


@pytest.mark.slow("real processes while masters are restarted, moved and failed over: minutes")
@pytest.mark.skipif(sys.platform != "linux", reason="the sizes of processes are read from /proc")
@pytest.mark.parametrize("kind", SITES)
def test_operations_give_no_lock_a_second_holder(kind: str) -> None:
    times = TIMES.get(kind, 3)
    # A lock that must not be lost has a ttl that a busy machine does not miss.
    ttl = 2.0 if SITES[kind].keeps else 0.5
    campaign = Campaign(kind, Options([], ["stock"], ttl, 2.0, timeout=30.0), processes=2)
    figures = campaign.run(times)
    print(figures)
    assert campaign.wrong == []
    assert figures["operations"] == times
    assert figures["locks granted"] > 20
