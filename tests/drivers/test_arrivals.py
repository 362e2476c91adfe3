"""What other threads deliver, to a driver that lives or is gone; connections to masters behind sentinels."""

from __future__ import annotations

import gc
import socket
import weakref
from queue import SimpleQueue
from typing import Any

import pytest
from support.played_sentinel import played

from redlatch.drivers.arrivals import Outcome, Switches, reject, weakly
from redlatch.masters.listed import masters_of
from redlatch.masters.master import Found
from redlatch.wire.dial.connect import Connection
from redlatch.wire.dial.switches import Switch
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


OLD, NEW = ("10.0.0.1", 6379), ("10.0.0.2", 6379)


def masters() -> list[Any]:
    return masters_of(["redis://10.0.0.9", "redis+sentinel://127.0.0.1:1/g"])


def connection_to(address: tuple[str, int], number: int = 1) -> Connection:
    return Connection(socket.socket(), Traits({}, 3), Found(address, number))


@pytest.mark.parametrize("adopted", [False, True])
def test_a_connection_to_a_former_master_must_be_closed(adopted: bool) -> None:
    listed = masters()
    switches = Switches(listed, lambda index, arrival: None)
    connection = connection_to(OLD)
    with connection.sock:
        if adopted:
            switches.adopt(1, connection)
        asked = (1,) if adopted else (1, connection)
        assert switches.cause_to_leave(*asked) is None
        listed[1].group.note(Found(NEW, 2))
        cause = str(switches.cause_to_leave(*asked))
    assert cause == "the sentinels announced 10.0.0.2:6379 as the master instead of 10.0.0.1:6379"


def test_a_connection_that_was_found_by_a_later_question_stays() -> None:
    listed = masters()
    switches = Switches(listed, lambda index, arrival: None)
    listed[1].group.note(Found(OLD, 2))
    for connection in (connection_to(NEW, number=3), connection_to(OLD, number=1)):
        with connection.sock:
            assert switches.cause_to_leave(1, connection) is None


def test_without_sentinels_there_is_nothing_to_leave() -> None:
    switches = Switches(masters(), lambda index, arrival: None)
    switches.listen(0)
    with socket.socket() as sock:
        connection = Connection(sock, Traits({}, 3))
        switches.adopt(0, connection)
        assert switches.cause_to_leave(0) is switches.cause_to_leave(0, connection) is None
    assert switches.cause_to_leave(1) is None


def test_the_socket_of_an_adopted_connection_is_not_kept() -> None:
    switches = Switches(masters(), lambda index, arrival: None)
    connection = connection_to(OLD)
    switches.adopt(1, connection)
    connection.sock.close()
    gone = weakref.ref(connection.sock)
    del connection
    gc.collect()
    assert gone() is None


def test_a_switch_is_delivered_with_the_index_of_its_master() -> None:
    delivered: SimpleQueue[Any] = SimpleQueue()
    with played(1, 6379) as [sentinel]:
        listed = masters_of(["redis://10.0.0.9", f"redis+sentinel://{sentinel.url}/g"])
        switches = Switches(listed, lambda index, arrival: delivered.put((index, arrival)))
        switches.listen(1)
        try:
            assert delivered.get(timeout=10.0) == (1, Switch(("127.0.0.1", 6379)))
        finally:
            switches.close()
