"""The app of the tests' workers. Its tasks write what they do to lists on the broker, so that tests can wait for it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import redis
from celery import Celery
from celery.signals import before_task_publish

from redlatch.celery import Singleton

URL = os.environ.get("CELERY_TEST_URL", "redis://127.0.0.1:1")

app = Celery("tasks", broker=URL, backend=URL)
app.conf.update(
    redlatch_masters=os.environ.get("CELERY_TEST_MASTERS", URL).split(),
    redlatch_options={"ttl": float(os.environ.get("CELERY_TEST_TTL", "10"))},
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    # A message whose worker dies is sent again after this time.
    broker_transport_options={"visibility_timeout": 2, "unacked_restore_limit": 100},
    result_extended=True,
    redbeat_redis_url=URL,
    redbeat_redis_options={"retry_period": 5},
    beat_schedule={"each second": {"task": "with_celery.tasks.counted", "schedule": 1.0, "args": ["beat"]}},
    beat_max_loop_interval=1,
    task_default_retry_delay=1,
)

# A task waits for a gate longer than the usual timeout of redis-py.
store = redis.Redis.from_url(URL, decode_responses=True, socket_timeout=None)


def told(what: str, word: str) -> None:
    """Write what a task does."""
    store.rpush(f"told:{what}", f"{word}:{os.getpid()}")


def wait_for(what: str, seconds: float = 60.0) -> None:
    """Wait until the test opens a gate."""
    if store.blpop([f"gate:{what}"], timeout=seconds) is None:
        raise TimeoutError(f"the gate {what} was not opened")
    # Others wait for the same gate.
    store.rpush(f"gate:{what}", "open")


# Seconds: tasks with this `run_ttl` show that their lock is ended, because it does not run out during a test.
LONG = 120.0


class Failed(Exception):
    """What a task raises."""


@app.task(base=Singleton, run_ttl=LONG)
def steady(what: str, gate: str = "") -> str:
    """As `work`, with a lock that does not run out soon."""
    told(what, "begin")
    if gate:
        wait_for(gate)
    told(what, "end")
    return what


@app.task(base=Singleton)
def work(what: str, gate: str = "") -> str:
    """Begin, wait for the gate, and end."""
    told(what, "begin")
    if gate:
        wait_for(gate)
    told(what, "end")
    return what


@app.task(base=Singleton, acks_late=True, reject_on_worker_lost=True, run_ttl=LONG)
def steady_late(what: str, gate: str = "") -> str:
    """As `late`, with a lock that does not run out soon."""
    told(what, "begin")
    if gate:
        wait_for(gate)
    told(what, "end")
    return what


@app.task(base=Singleton, acks_late=True, reject_on_worker_lost=True)
def late(what: str, gate: str = "") -> str:
    """As `work`, with a message that is acknowledged at the end."""
    told(what, "begin")
    if gate:
        wait_for(gate)
    told(what, "end")
    return what


@app.task(base=Singleton, run_ttl=LONG)
def fail(what: str) -> None:
    told(what, "begin")
    raise Failed(what)


@app.task(base=Singleton, bind=True, max_retries=3, run_ttl=LONG)
def again(self: Any, what: str, times: int, gate: str = "") -> str:
    """Retry a number of times. Between two tries the test may open a gate."""
    told(what, f"try{self.request.retries}")
    if self.request.retries < times:
        raise self.retry(countdown=0.5)
    if gate:
        wait_for(gate)
    told(what, "end")
    return what


@app.task(base=Singleton, bind=True, run_ttl=LONG)
def again_later(self: Any, what: str, gate: str) -> str:
    """Retry once, when the test opens a gate."""
    told(what, f"try{self.request.retries}")
    if not self.request.retries:
        wait_for(gate)
        raise self.retry(countdown=0.5)
    return what


@app.task(base=Singleton, bind=True, run_ttl=LONG)
def much_later(self: Any, what: str) -> None:
    """Retry after the time that the guard allows."""
    told(what, f"try{self.request.retries}")
    raise self.retry(countdown=7200)


@app.task(base=Singleton, time_limit=1.0, run_ttl=LONG)
def limited(what: str) -> None:
    """Run for longer than the hard time limit."""
    told(what, "begin")
    wait_for("never")


@app.task(base=Singleton, time_limit=1.0, run_ttl=LONG)
def stubborn(what: str) -> None:
    """Run for longer than the hard time limit, and do not obey SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    told(what, "begin")
    wait_for("never")


@app.task(base=Singleton, soft_time_limit=1.0, run_ttl=LONG)
def soft(what: str) -> None:
    told(what, "begin")
    wait_for("never")


@app.task(base=Singleton, run_ttl=LONG)
def die(what: str) -> None:
    """Die as a process that the kernel kills."""
    told(what, "begin")
    os.kill(os.getpid(), signal.SIGKILL)


class Lingering(Singleton):
    """Keeps its lock after its result was stored, until the test opens a gate."""

    abstract = True

    def on_success(self, retval: str, task_id: str, args: Any, kwargs: Any) -> None:
        wait_for(retval)


@app.task(base=Lingering, run_ttl=LONG)
def linger(what: str) -> str:
    return what


@app.task(base=Singleton, bind=True)
def guarded(self: Any, what: str) -> str:
    """Tell what the lock says, before and after the test has taken it away."""
    self.lock.check()
    told(what, "begin")
    lost = self.lock.lost.wait(30)
    told(what, f"lost-{lost}")
    return what


@app.task(base=Singleton, on_duplicate="raise")
def strict(what: str) -> str:
    return what


@app.task(base=Singleton, on_duplicate="ignore")
def careless(what: str) -> str:
    return what


@app.task(base=Singleton, unique_on=["user"])
def of_user(user: int, text: str = "") -> str:
    return text


@app.task(base=Singleton, unique_on="user")
def of_one_user(user: int, text: str = "") -> str:
    return text


@app.task(base=Singleton, unique_on=[])
def of_nobody(text: str) -> str:
    return text


@app.task(base=Singleton, queue_ttl=0.5, run_ttl=LONG)
def patient(what: str, gate: str = "") -> str:
    """A task whose lock runs out soon while it waits in the queue."""
    told(what, "begin")
    if gate:
        wait_for(gate)
    told(what, "end")
    return what


@app.task
def counted(what: str) -> None:
    """A task without a lock, for the scheduler."""
    store.rpush(f"told:{what}", f"{time.time()}")


class Stops:
    """Tells its process to stop while it is deleted, when an exception goes nowhere."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def stop_in_del(**_: object) -> None:
    """Make an object and delete it."""
    Stops()


if "CELERY_TEST_STOPS" in os.environ:
    before_task_publish.connect(stop_in_del)


def alive(pid: int) -> bool:
    """Return whether a process still runs. A process that its parent has not waited for yet does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@app.task(base=Singleton, acks_late=True, reject_on_worker_lost=True, unique_on=["what"])
def exclusive(what: str, number: int) -> int:
    """Tell if another process is in here, too. A process that was killed in here is not."""
    inside = store.set(f"inside:{what}", os.getpid(), get=True)
    if inside and alive(int(inside)):
        told("overlaps", f"{what}-{number}")
    for _ in range(20):
        store.ping()
    store.delete(f"inside:{what}")
    store.incr(f"done:{what}")
    return number
