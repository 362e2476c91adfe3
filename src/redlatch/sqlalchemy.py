"""Hold locks until the end of a transaction of SQLAlchemy: `hold`. Needs the extra ``sql``.

A lock that is released inside the transaction lets the next holder read data from before the COMMIT. `hold` ties the
lock to the outermost transaction of a session:

* It acquires the lock before the transaction sends its first statement, because a statement may fix the snapshot.
* It checks the lock right before COMMIT (the event "commit" of the connection, after the last flush).
* It releases the lock when the outermost transaction has ended ("after_transaction_end").
* Without the event "after_commit" the commit is in doubt, unless the error of COMMIT ("handle_error" of the engine)
  says that the transaction was rolled back.

The events of an AsyncSession are those of its `sync_session`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

from sqlalchemy import event
from sqlalchemy.engine import Connection, ExceptionContext
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from .aio import AsyncLock
from .client import Lock
from .errors import ConfigurationError, LockError
from .locks.task_multi import AsyncMultiLock
from .locks.thread_multi import MultiLock
from .transactions import Held, Holdings, Outcome, check_kind, surely_rolled_back

__all__ = ["hold"]

AnyLock = TypeVar("AnyLock", Lock, MultiLock)
AnyAsyncLock = TypeVar("AnyAsyncLock", AsyncLock, AsyncMultiLock)

_KEY = "redlatch"

# Weak, because a session that is garbage returns its connections to the pool.
_OF_CONNECTION: weakref.WeakKeyDictionary[Connection, weakref.ref[_Transaction]] = weakref.WeakKeyDictionary()


@overload
def hold(
    session: Session | scoped_session[Any],
    lock: AnyLock,
    *,
    margin: float | None = None,
    late: bool = False,
    expire: bool = True,
) -> AnyLock: ...


@overload
def hold(
    session: AsyncSession | async_scoped_session[Any],
    lock: AnyAsyncLock,
    *,
    margin: float | None = None,
    late: bool = False,
    expire: bool = True,
) -> Coroutine[Any, Any, AnyAsyncLock]: ...


def hold(
    session: Any, lock: Any, *, margin: float | None = None, late: bool = False, expire: bool = True
) -> Any | Coroutine[Any, Any, Any]:
    """Acquire a lock, and hold it until the outermost transaction of the session has ended.

    Call it at the beginning of the transaction, and do not release the lock yourself. With an AsyncSession, await it.
    COMMIT raises an exception and rolls back if the lock is not valid for long enough. If the connection breaks in
    COMMIT, the commit is in doubt. Then the lock is not released: `on_lost` is called, and the lock expires.

    Args:
        session: a Session or an AsyncSession, or a scoped one. A transaction begins if none has.
        lock: a lock or a multi-lock that is not held, of a `Client` for a Session and of an `AsyncClient` for an
            AsyncSession. It is acquired within its timeout.
        margin: the seconds of validity that must be left before COMMIT. Default a tenth of the ttl, at most 1 s.
        late: if True, the transaction may use a connection already. Only set this at READ COMMITTED, where each
            statement sees all earlier commits. Default False.
        expire: if True, expire objects that the session has loaded before, perhaps before the lock. Default True.

    Returns:
        The lock that is held: `lock`, or the lock that this transaction holds on the same names already.

    Raises:
        LockTimeout, LockBusy: another holder has the lock.
        ConfigurationError: the transaction uses a connection already, the session has unsaved changes, uses two-phase
            commit, or takes part in a transaction of its connection; or an argument is invalid.
        AlreadyHeld: the transaction holds some of the names otherwise, or `lock` is held already.
        QuorumUnavailable: too many masters failed; `causes` has the error of each.
        ClientUnusable: the client is closed, or belongs to another process or event loop.
        TypeError: an argument has the wrong type.
    """
    if isinstance(session, (scoped_session, async_scoped_session)):
        session = session()
    if isinstance(session, AsyncSession):
        check_kind(lock, (AsyncLock, AsyncMultiLock), "hold() of an AsyncSession")
        # Begin before the coroutine is awaited: a transaction whose hold() is not awaited cannot commit.
        return _acquire_async(_Holding(session.sync_session, lock, margin, late, expire))
    if not isinstance(session, Session):
        raise TypeError(f"session: a Session or an AsyncSession is needed, not {type(session).__name__}")
    check_kind(lock, (Lock, MultiLock), "hold() of a Session")
    return _acquire(_Holding(session, lock, margin, late, expire))


def _acquire(holding: _Holding) -> Any:
    if holding.held is None:
        return holding.lock
    try:
        if not holding.lock.acquire():
            raise holding.lock._refusal().ask()
        holding.won()
    except BaseException:
        holding.give_up()
        raise
    return holding.lock


async def _acquire_async(holding: _Holding) -> Any:
    if holding.held is None:
        return holding.lock
    try:
        if not await holding.lock.acquire():
            raise await holding.lock._refusal().ask_async()
        holding.won()
    except BaseException:
        holding.give_up()
        raise
    return holding.lock


class _Holding:
    """One call of `hold`; `held` is None if the transaction has a lock on the same names already."""

    def __init__(self, session: Session, lock: Any, margin: float | None, late: bool, expire: bool) -> None:
        self._session = session
        self._expire = expire
        self._transaction = _transaction_of(session)
        earlier = self._transaction.holdings.find(lock)
        self.lock = lock if earlier is None else earlier
        self.held: Held | None = None
        if earlier is None:
            _refuse(session, late, expire)
            self._transaction.join()
            self.held = self._transaction.holdings.add(lock, margin)

    def won(self) -> None:
        assert self.held is not None
        self.held.won()
        if self._expire:
            self._session.expire_all()

    def give_up(self) -> None:
        if self.held is not None:
            self._transaction.holdings.drop(self.held)


class _Transaction:
    """The outermost transaction of a session, with the locks that it holds."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self.holdings = Holdings()
        self.root: SessionTransaction | None = None
        self.committing = self.committed = False
        self.error: BaseException | None = None

    def join(self) -> None:
        session = self._session()
        if session is None or self.root is not None:
            return
        self.root = session.get_transaction() or session.begin()
        session.info[_KEY] = self
        for name, listener in _LISTENERS.items():
            # If an earlier listener to "after_commit" raises, ours is not called.
            event.listen(session, name, listener, insert=True)
        for connection in _connections(self.root):
            self.watch(connection)

    def watch(self, connection: Connection) -> None:
        # Repeating this is harmless; `event.contains` compares ids of objects.
        _OF_CONNECTION[connection] = weakref.ref(self)
        event.listen(connection, "commit", _before_commit)
        # After an earlier listener has replaced the error, this one is not called, and the commit is in doubt.
        event.listen(connection.engine, "handle_error", _on_error)

    def before_commit(self, connection: Connection) -> None:
        """Check the locks before the first COMMIT; roll back if one is not valid for long enough.

        A check after one of several connections has committed would leave half of the work.
        """
        if self.committing:
            return
        try:
            self.holdings.check()
        except LockError as failure:
            # SQLAlchemy expects that a failed COMMIT has ended the transaction, and would not roll it back.
            try:
                connection.dialect.do_rollback(connection.connection)
            except Exception as unanswered:
                failure.add_note(f"redlatch: {type(unanswered).__name__} when the transaction was rolled back")
            raise
        self.committing = True

    def end(self) -> None:
        session = self._session()
        if session is not None:
            session.info.pop(_KEY, None)
        for connection in [] if self.root is None else _connections(self.root):
            _OF_CONNECTION.pop(connection, None)
        if not self.committing:
            self.holdings.end(Outcome.ROLLED_BACK)
        elif self.committed:
            self.holdings.end(Outcome.COMMITTED)
        elif self.error is not None and surely_rolled_back(self.error):
            self.holdings.end(Outcome.ROLLED_BACK)
        else:
            self.holdings.end(Outcome.IN_DOUBT, self.error)


def _transaction_of(session: Session) -> _Transaction:
    transaction: _Transaction | None = session.info.get(_KEY)
    if transaction is not None and transaction.root is session.get_transaction():
        return transaction
    return _Transaction(session)


def _refuse(session: Session, late: bool, expire: bool) -> None:
    # The lock could not protect the data that such a transaction reads or commits.
    for what, value in (("late", late), ("expire", expire)):
        if not isinstance(value, bool):
            raise TypeError(f"{what}: True or False is needed, not {type(value).__name__}")
    if session.twophase:
        raise ConfigurationError(
            "session: a prepared transaction may be committed after the lock has run out; hold() needs twophase=False"
        )
    outer = isinstance(session.bind, Connection) and session.bind.in_transaction()
    if outer and session.join_transaction_mode != "create_savepoint":
        raise ConfigurationError(
            "session: its connection has begun the transaction and commits it later, after the release of the lock; "
            "let the session begin it. In tests, give the session join_transaction_mode='create_savepoint'"
        )
    root = session.get_transaction()
    if not late and root is not None and _connections(root):
        raise ConfigurationError(
            "session: its transaction uses a connection already, so it may have read data that is older than the lock; "
            "call hold() first, or commit or roll back before. At READ COMMITTED, late=True allows it"
        )
    if expire and session.dirty:
        raise ConfigurationError(
            f"session: it has unsaved changes of {len(session.dirty)} objects, made from data that is older than the "
            "lock; commit or expire them before hold(), or give expire=False"
        )


def _connections(root: SessionTransaction) -> frozenset[Connection]:
    try:
        return root.connections
    except AttributeError:
        # SQLAlchemy before 2.1.7.
        return frozenset(entry[0] for entry in root._connections.values())


def _of(connection: Connection | None) -> _Transaction | None:
    reference = None if connection is None else _OF_CONNECTION.get(connection)
    return None if reference is None else reference()


# --- the listeners -----------------------------------------------------------------------------------


def _after_begin(session: Session, _: SessionTransaction, connection: Connection) -> None:
    transaction: _Transaction | None = session.info.get(_KEY)
    if transaction is not None:
        transaction.watch(connection)


def _before_commit(connection: Connection) -> None:
    transaction = _of(connection)
    if transaction is not None:
        transaction.before_commit(connection)


def _on_error(context: ExceptionContext) -> None:
    # Only the COMMIT of a committing transaction has no statement.
    transaction = _of(context.connection)
    if transaction is not None and transaction.committing and context.statement is None and transaction.error is None:
        transaction.error = context.original_exception


def _after_commit(session: Session) -> None:
    transaction: _Transaction | None = session.info.get(_KEY)
    # Savepoints have this event, too.
    if transaction is not None and transaction.committing:
        transaction.committed = True


def _after_transaction_end(session: Session, ended: SessionTransaction) -> None:
    transaction: _Transaction | None = session.info.get(_KEY)
    if transaction is not None and transaction.root is ended:
        transaction.end()


_LISTENERS: dict[str, Callable[..., None]] = {
    "after_begin": _after_begin,
    "after_commit": _after_commit,
    "after_transaction_end": _after_transaction_end,
}
