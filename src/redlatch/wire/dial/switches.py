"""Listen to the sentinels of a group: they announce at once that another server is the master (`+switch-master`).

Without this, a client notices a new master only when its connection breaks, and the connection to a stopped server does
not break.

An announcement decides nothing, since one sentinel may be wrong. It makes the thread ask all sentinels and report the
master that a majority names. Each sentinel announces the new master as soon as it knows of it, so the question after
the announcement that completes the majority finds it. The thread also asks when a subscription begins, because it may
have missed an announcement.
"""

from __future__ import annotations

import logging
import math
import os
import select
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from redis.sentinel import MasterNotFoundError

from ...masters.master import Address, Group
from ...votes.redaction import shown
from ..helper_threads import claim, start_thread
from .conversation import seconds
from .sentinels import find_master
from .subscription import Subscription

logger = logging.getLogger("redlatch")

# Seconds until the thread continues after a question without a majority, or an unexpected error.
PAUSE = 1.0


class Switch(NamedTuple):
    """A majority of the sentinels names a master of the group; `moved` if it named another one before."""

    address: Address
    moved: bool = True


class SwitchListener:
    """The thread that listens to the sentinels of one group.

    Args:
        heard: called in the thread. It must not keep the client alive.
    """

    def __init__(self, group: Group, heard: Callable[[Switch], None]) -> None:
        self._group = group
        self._heard = heard
        self._subscriptions = [Subscription(sentinel) for sentinel in group.sentinels]
        self._unanswered: set[int] = set()
        self._again = math.inf
        self._closed = False
        self._process = 0
        self._unstarted = [None]
        # The thread waits at the first end. It ends when the second one is closed.
        self._wakeup: tuple[socket.socket, socket.socket] | None = None

    def start(self) -> None:
        """Start the thread, unless it runs; raise RuntimeError if the process has no thread or descriptor left."""
        if not self._unstarted or self._closed:
            return
        self._process = os.getpid()
        # It is there after a start that was interrupted.
        if self._wakeup is None:
            try:
                self._wakeup = socket.socketpair()
            except OSError as error:
                raise RuntimeError(f"no sockets for a thread: {error.strerror}") from error
        try:
            start_thread("listen", self._run, self._wakeup[0])
        except RuntimeError:
            self._end_wakeup(both=True)
            raise

    def close(self) -> None:
        """End the thread. In a forked child, close the child's copies of the sockets."""
        self._closed = True
        alone = bool(self._unstarted) or self._process != os.getpid()
        self._end_wakeup(both=alone)
        if alone:
            for subscription in self._subscriptions:
                subscription.close()

    def _end_wakeup(self, both: bool) -> None:
        wakeup, self._wakeup = self._wakeup, None
        for end in (wakeup or ())[0 if both else 1 :]:
            end.close()

    def _run(self, wakeup: socket.socket) -> None:
        if not claim(self._unstarted):
            return
        try:
            while not self._closed:
                try:
                    self._turn(wakeup)
                except Exception:
                    logger.exception("listening to the sentinels of %s failed", shown(self._group.name))
                    _readable([wakeup], PAUSE)
        finally:
            for subscription in self._subscriptions:
                subscription.close()
            wakeup.close()

    def _turn(self, wakeup: socket.socket) -> None:
        for subscription in self._subscriptions:
            subscription.attend(seconds())
        now = seconds()
        sources = [(each.source(), each) for each in self._subscriptions if each.rests <= now]
        read = {source.fileno(): each for source, each in sources if source is not None}
        resting = [each.rests for each in self._subscriptions if each.rests > now]
        due = min([self._question_due(), *resting, *[each.due for each in self._subscriptions]])
        for descriptor in _readable([wakeup, *read], due - now):
            if descriptor in read:
                announced = [self._is_ours(message) for message in read[descriptor].messages()]
                read[descriptor].news = read[descriptor].news or any(announced)
        if self._question_due() <= seconds() and not self._closed:
            self._ask()

    def _is_ours(self, message: Any) -> bool:
        """Return whether "group old-host old-port new-host new-port" is about our group."""
        words = message.split() if isinstance(message, bytes) else []
        return len(words) == 5 and words[0] == self._group.name.encode()

    def _question_due(self) -> float:
        return min([self._again, *[each.allowance.due for each in self._subscriptions if each.news]])

    def _ask(self) -> None:
        for subscription in self._subscriptions:
            if subscription.news:
                subscription.news = False
                subscription.allowance.spend(seconds())
        # The next announcement may find a majority. But a sentinel may have answered late that will announce no more.
        self._again = seconds() + PAUSE
        try:
            found = find_master(self._group, self._unanswered)
        except MasterNotFoundError:
            return
        self._again = math.inf
        self._heard(Switch(found.address, self._group.note(found)))


def _readable(sources: list[Any], seconds: float) -> list[int]:
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    timeout_ms = None if seconds == math.inf else max(0.0, seconds) * 1000
    return [descriptor for descriptor, _ in poll.poll(timeout_ms)]
