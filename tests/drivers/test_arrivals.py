"""What a dialling thread delivers: to a driver that lives, and to one that is gone."""

from __future__ import annotations

import gc
import socket

from redlatch.drivers.arrivals import Outcome, reject, weakly
from redlatch.wire.dial.connect import Connection
from redlatch.wire.server_traits import Traits


class Driver:
    def __init__(self) -> None:
        self.came: list[tuple[int, Outcome]] = []

    def deliver(self, index: int, outcome: Outcome) -> None:
        self.came.append((index, outcome))


def connection() -> Connection:
    near, far = socket.socketpair()
    far.close()
    return Connection(near, Traits({"run_id": "r", "role": "master", "redis_version": "7"}, 3, False))


def test_a_driver_that_lives_gets_each_outcome() -> None:
    driver, refused = Driver(), ConnectionRefusedError()
    made = connection()
    with made.sock as sock:
        deliver = weakly(driver)
        deliver(0, refused)
        deliver(1, made)
        assert driver.came == [(0, refused), (1, made)]
        assert sock.fileno() >= 0


def test_a_connection_for_a_driver_that_is_gone_is_closed() -> None:
    driver = Driver()
    deliver = weakly(driver)
    del driver
    gc.collect()
    late = connection()
    deliver(0, late)
    deliver(0, ConnectionRefusedError())
    assert late.sock.fileno() == -1


def test_turning_away_may_be_repeated() -> None:
    late = connection()
    reject(late)
    reject(late)
    reject(TimeoutError())
    assert late.sock.fileno() == -1
