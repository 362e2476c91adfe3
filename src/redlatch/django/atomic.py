"""Hold locks until the end of a transaction of Django: `atomic`. Needs the extra ``django``.

If the lock were released inside the transaction, the next holder could read data from before the COMMIT. A release by
`transaction.on_commit` alone would never happen after a rollback. So `atomic` wraps the whole of `transaction.atomic`:

    acquire, BEGIN, body, check, COMMIT, the on_commit functions, release

Inside another atomic block, the lock belongs to that block: one of ours, or a plain one (`_Watch`). In a `TestCase` the
outermost block inside the test's transaction counts as the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from ..client import Lock
from ..errors import LockError
from ..locks.thread_multi import MultiLock
from ..transactions import Holdings, Outcome, check_kind, surely_rolled_back

AnyLock = TypeVar("AnyLock", Lock, MultiLock)

_ATTRIBUTE = "_redlatch_transaction"


@contextmanager
def atomic(
    lock: AnyLock | Callable[[], AnyLock],
    using: str | None = None,
    *,
    durable: bool = True,
    margin: float | None = None,
) -> Iterator[AnyLock]:
    """Run a block or a function in a transaction that holds a lock until it has ended.

    It is `transaction.atomic` with a lock around it. ``as`` gives the held lock. Do not release it yourself. The
    `on_commit` functions run before the release. If the connection breaks in COMMIT, the commit is in doubt. Then the
    lock is not released: `on_lost` is called, and the lock expires.

    Args:
        lock: a lock or a multi-lock of a `Client` that is not held, or a function that makes one. A decorator needs the
            function, because each call is another holder.
        using: the alias of the database. None is "default".
        durable: if True, this block must be the outermost one. If False, the lock of a block inside another one is held
            until the outermost block has ended. Only set it to False at READ COMMITTED (the default of Django), and
            read what you change inside this block. Default True.
        margin: seconds of validity that must be left before COMMIT. Default a tenth of the ttl, at most 1 s.

    Raises:
        LockTimeout, LockBusy: another holder has the lock.
        LockLost: the lock was not valid for long enough to commit; the transaction was rolled back.
        NotOwned: the lock was released in the block; the transaction was rolled back.
        TransactionManagementError: the block is inside another one, and `durable` is True; or autocommit is off, so the
            block would not commit.
        AlreadyHeld: the transaction holds some of the names otherwise, or `lock` is held already.
        QuorumUnavailable: too many masters failed; `causes` has the error of each.
        ClientUnusable: the client is closed, or belongs to another process.
    """
    from django.db import transaction

    if not isinstance(durable, bool):
        raise TypeError(f"durable: True or False is needed, not {type(durable).__name__}")
    made: Any = lock() if callable(lock) else lock
    check_kind(made, (Lock, MultiLock), "atomic()")
    connection = transaction.get_connection(using)
    joined = _joined(connection, durable)
    whole = _Transaction(connection) if joined is None else joined
    with whole if joined is None else nullcontext():
        held = whole.acquire(made, margin)
        with transaction.atomic(using=using, durable=durable):
            if joined is None:
                whole.begin()
            yield held
            if joined is None:
                whole.before_commit()


def _joined(connection: Any, durable: bool) -> _Transaction | None:
    from django.db.transaction import TransactionManagementError

    blocks = connection.atomic_blocks if connection.in_atomic_block else []
    if not (connection.commit_on_exit if blocks else connection.get_autocommit()):
        raise TransactionManagementError(
            "redlatch.django.atomic: autocommit is off, so the block would not commit, and the lock would be released "
            "before your commit(); turn autocommit on"
        )
    if not blocks or blocks[-1]._from_testcase:
        return None
    if durable:
        raise TransactionManagementError(
            "redlatch.django.atomic: this block is inside another atomic block, which commits later (ATOMIC_REQUESTS "
            "makes one, too). Make this block the outermost one, or give durable=False to hold the lock until the "
            "other one has committed"
        )
    joined: _Transaction | None = getattr(connection, _ATTRIBUTE, None)
    if joined is None and not blocks[0]._from_testcase:
        joined = _Watch(connection)
    return joined


class _Transaction:
    """A transaction with the locks that it holds. This one is ended by our own outermost block."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.holdings = Holdings()
        self.committing = self.committed = False
        # The transaction whose `on_commit` function runs this one; its locks are still held.
        self._before: _Transaction | None = getattr(connection, _ATTRIBUTE, None)

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.end(error)

    def acquire(self, lock: Any, margin: float | None) -> Any:
        """Acquire a lock, unless the transaction has it already; return the held one."""
        earlier = self.find(lock)
        if earlier is not None:
            return earlier
        held = self.holdings.add(lock, margin)
        try:
            if not lock.acquire():
                raise lock._refusal().ask()
            held.won()
        except BaseException:
            self.holdings.drop(held)
            raise
        return lock

    def find(self, lock: Any) -> Any:
        earlier = self.holdings.find(lock)
        return self._before.find(lock) if earlier is None and self._before is not None else earlier

    def begin(self) -> None:
        setattr(self.connection, _ATTRIBUTE, self)
        # In a TestCase, `captureOnCommitCallbacks` would count this function.
        if not self.connection.savepoint_ids:
            # The first function runs first, and later ones may raise.
            self.connection.on_commit(self._note_commit)

    def _note_commit(self) -> None:
        self.committed = True

    def before_commit(self) -> None:
        # Otherwise the block rolls back anyway (`transaction.set_rollback`).
        if not self.connection.needs_rollback:
            self.check()
            # In a TestCase the end of the block only releases a savepoint.
            self.committing = not self.connection.savepoint_ids

    def check(self) -> None:
        if self._before is not None:
            self._before.check()
        self.holdings.check()

    def end(self, error: BaseException | None) -> None:
        # `error` is what the block or its COMMIT raised.
        if getattr(self.connection, _ATTRIBUTE, None) is self:
            setattr(self.connection, _ATTRIBUTE, self._before)
        if self.committed or (self.committing and error is None):
            self.holdings.end(Outcome.COMMITTED)
        elif self.committing and error is not None and not surely_rolled_back(error):
            self.holdings.end(Outcome.IN_DOUBT, error)
        else:
            self.holdings.end(Outcome.ROLLED_BACK)


_ENDINGS = ("commit", "set_autocommit", "close")


class _Watch(_Transaction):
    """A transaction that a plain outermost block of Django ends.

    Django calls functions after a commit, but not after a rollback. So the methods of the connection object by which
    the outermost block ends are replaced until it has ended:

    * `commit` checks the locks first, and rolls back if one is not valid for long enough.
    * `set_autocommit` is the last step, even after a rollback, and runs the `on_commit` functions. Then the locks are
      released.
    * `close` inside the block ends the transaction without a COMMIT and without that step.
    """

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._error: BaseException | None = None
        # True in the last step of the outermost block, whose `on_commit` functions may have transactions themselves.
        self._ending = False
        self._replaced = {name: vars(connection)[name] for name in _ENDINGS if name in vars(connection)}
        self._former = {name: getattr(connection, name) for name in _ENDINGS}
        setattr(connection, _ATTRIBUTE, self)
        for name in _ENDINGS:
            setattr(connection, name, getattr(self, f"_{name}"))

    def _commit(self) -> None:
        if self._ending or self.connection.in_atomic_block:
            self._former["commit"]()
            return
        self._check_or_roll_back()
        self.committing = True
        try:
            self._former["commit"]()
        except BaseException as error:
            self._error = error
            raise
        self.committed = True

    def _check_or_roll_back(self) -> None:
        from django.db import Error

        try:
            self.check()
        except LockError:
            # The block rolls back only after errors of the database; otherwise MySQL would commit.
            try:
                self.connection.rollback()
            except Error:
                self.connection.close()
            raise

    def _set_autocommit(self, *args: Any, **named: Any) -> None:
        if self._ending or self.connection.in_atomic_block:
            self._former["set_autocommit"](*args, **named)
            return
        self._ending = True
        try:
            self._former["set_autocommit"](*args, **named)
        finally:
            self._finish()

    def _close(self) -> None:
        try:
            self._former["close"]()
        finally:
            if self.connection.closed_in_transaction and not self._ending:
                self._finish()

    def _finish(self) -> None:
        for name in _ENDINGS:
            if name in self._replaced:
                setattr(self.connection, name, self._replaced[name])
            else:
                vars(self.connection).pop(name, None)
        self.end(self._error)
