"""One transaction for many calls of scripts that wait behind each other, each with keys of its own.

With a transaction for each call, a batch of a thousand releases would take two thousand round trips. So the
transactions of `transactions` run side by side: one WATCH for all keys, one MULTI, and one EXEC with all changes. If
that changes nothing, because any key was touched or any command was refused, each call has a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from redlatch.votes.scripts import ACQUIRE_FENCED, CONFIRM, EXTEND, RELEASE
from redlatch.wire.bridge.transactions import TRY, Failed, Part, Reply, Steps, Words, answered, calls_script

OK, QUEUED = b"OK", b"QUEUED"

_SHARING = {word for script in (RELEASE, EXTEND, ACQUIRE_FENCED, CONFIRM) for word in (script.sha, script.text)}


def runs(commands: list[Words], most: int) -> Iterator[tuple[list[Words], Steps | None]]:
    """Divide commands into runs of at most `most`, in their order.

    Yields:
        The commands of a run, and their transaction, which returns a list with the reply to each; None if the server
            knows the commands.
    """
    run: list[Words] = []
    keys: set[bytes] = set()
    for words in commands:
        mine = _keys_of(words)
        # Commands that the server knows go together, and calls with different keys.
        fits = bool(mine) and not keys.intersection(mine) if keys else not calls_script(words)
        if run and (len(run) == most or not fits or (calls_script(run[0]) and not keys)):
            yield run, _performing(run)
            run, keys = [], set()
        run.append(words)
        keys.update(mine)
    if run:
        yield run, _performing(run)


def _keys_of(words: Words) -> Words:
    """Return the keys of a call that may share its transaction with others."""
    return words[3 : 3 + int(words[2])] if calls_script(words) and words[1] in _SHARING else []


def _performing(run: list[Words]) -> Steps | None:
    return _all(run) if calls_script(run[0]) else None


def _all(calls: list[Words]) -> Steps:
    if len(calls) > 1:
        shared = yield from _together(calls)
        if shared is not None:
            return shared
    replies = []
    for words in calls:
        replies.append((yield from answered(words[1], words[3:])))
    return replies


def _together(calls: list[Words]) -> Part[list[Reply] | None]:
    """Perform calls with different keys in one transaction; return None if it changed nothing."""
    tries = [TRY[words[1]](*words[3:]) for words in calls]
    changes = yield from _read(tries)
    if changes is None:
        return None
    commands = [command for change in changes for command in change]
    if not commands:
        yield [[b"DISCARD"]]
        return [_last(each, [OK]) for each in tries]
    *queued, done = yield [*commands, [b"EXEC"]]
    if isinstance(done, Exception) and not str(done).startswith("EXECABORT"):
        yield [[b"DISCARD"]]
    return _results(tries, changes, queued, done)


def _read(tries: list[Part[Reply]]) -> Part[list[list[Words]] | None]:
    """Return the change of each call, or None if there is no transaction."""
    begins = [next(each) for each in tries]
    keys = [key for begin in begins for key in begin[0][1:]]
    reads = [read for begin in begins for read in begin[1:-1]]
    watched, *found, opened = yield [[b"WATCH", *keys], *reads, [b"MULTI"]]
    changes = None
    if not any([isinstance(reply, Exception) for reply in (watched, *found, opened)]):
        replies = iter(found)
        counts = [len(begin) - 2 for begin in begins]
        try:
            changes = [
                each.send([watched, *islice(replies, count), opened]) for each, count in zip(tries, counts, strict=True)
            ]
        except Failed:
            # Each call then runs alone, and returns the error.
            pass
    if changes is None:
        if not isinstance(opened, Exception):
            yield [[b"DISCARD"]]
        return None
    return [[] if change == [[b"DISCARD"]] else change[:-1] for change in changes]


def _results(
    tries: list[Part[Reply]], changes: list[list[Words]], queued: list[Reply], done: Reply
) -> list[Reply] | None:
    """Return the reply of each call; None if EXEC has changed nothing."""
    refused = any([isinstance(reply, Exception) for reply in queued])
    if refused or not isinstance(done, list) or len(done) != len(queued):
        return None
    results = iter(done)
    return [
        _last(each, [*[QUEUED] * len(change), list(islice(results, len(change)))] if change else [OK])
        for each, change in zip(tries, changes, strict=True)
    ]


def _last(each: Part[Reply], replies: list[Reply]) -> Reply:
    try:
        each.send(replies)
    except StopIteration as ended:
        return ended.value
    except Failed as failed:
        return failed.error
    raise AssertionError("a transaction goes on behind EXEC")
