"""The descriptors of connections."""

from __future__ import annotations

import os
import select
import socket

from redlatch.sql.descriptors import HANGUP, descriptor_of, give_up_at_fork, keep_alive


class Holder:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def descriptors(self) -> list[int]:
        return [self._sock.fileno()]


def test_the_descriptor_of_a_connection_is_found() -> None:
    with socket.socket() as sock:
        assert descriptor_of(sock) == descriptor_of(Holder(sock)) == sock.fileno()
    assert descriptor_of(object()) == -1


def test_a_child_gives_up_what_its_parent_holds() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        holder = Holder(ours)
        give_up_at_fork(holder)
        child = os.fork()
        if not child:
            try:
                ours.send(b"from the child")
            except OSError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        ours.send(b"from the parent")
        assert theirs.recv(100) == b"from the parent"


def test_keepalive_is_for_tcp_only() -> None:
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as local:
        keep_alive(tcp.fileno())
        keep_alive(local.fileno())
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not local.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_the_end_of_a_connection_is_seen_although_data_are_there() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        poll = select.poll()
        poll.register(ours, HANGUP)
        theirs.send(b"the last words")
        assert poll.poll(0) == []
        theirs.close()
        assert poll.poll(0)
