"""The command line of `redlatch run`. Its options are those of flock(1) where flock has them."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from redlatch.arguments import (
    NAME,
    SECONDS,
    Number,
    master_option,
    max_ttl_option,
    prefix_option,
    strict_option,
    trust_option,
    with_options,
)
from redlatch.errors import ConfigurationError
from redlatch.guard.settings import Guard
from redlatch.masters.listed import masters_from_env
from redlatch.options import owner_name
from redlatch.run.job import LOST, SIGNALLED, SOFTWARE, USAGE, Job
from redlatch.run.supervisor import OnLoss

STATUS = click.IntRange(0, 255)

KILL_AFTER = 5.0


HELP = {
    "ttl": "Seconds until others get the lock if this process and its machine die.",
    "wait": "Wait at most this many seconds for the lock, and for the masters if too few answer. "
    "Default: wait indefinitely for a busy lock, and not for masters.",
    "busy": "The exit status if the lock is busy.",
    "fence": "Number the holders: REDLATCH_FENCE, for stores that refuse lower numbers.",
    "min_hold": "Hold the lock for at least this many seconds; this process ends no earlier.",
    "kill_after": "Between SIGTERM and SIGKILL if the lock is lost. Default: 5, or half of a shorter ttl.",
    "on_loss": "If the lock is lost: end CMD, only warn, or wait for the lock and start CMD again.",
    "owner": "What others read of the holder. Default: host:pid. [REDLATCH_OWNER]",
    "lost": "The exit status if the lock was lost.",
}


class _Run(click.Command):
    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _usage_status():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _usage_status():
            return super().invoke(ctx)


@contextmanager
def _usage_status() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        error.exit_code = USAGE  # type: ignore[misc]
        raise


with_all_options = with_options(
    master_option,
    click.option("--ttl", type=Number(min=0.1), default=10.0, show_default=True, help=HELP["ttl"]),
    click.option("-n", "--nb", "--nonblock", "nonblock", is_flag=True, help="Fail at once if the lock is busy."),
    click.option("-w", "--wait", "--timeout", "wait", type=SECONDS, metavar="SECS", help=HELP["wait"]),
    click.option("-E", "--conflict-exit-code", "busy", type=STATUS, default=1, show_default=True, help=HELP["busy"]),
    click.option("-s", "--shared", is_flag=True, help="A read lock: others with -s may run at the same time."),
    click.option("-x", "-e", "--exclusive", is_flag=True, help="A lock that excludes all others: the default."),
    click.option("--slots", type=click.IntRange(1, 1_000_000), metavar="N", help="Let N run at the same time."),
    click.option("--fair", is_flag=True, help="Serve waiters in the order in which they came."),
    click.option("--fence", is_flag=True, help=HELP["fence"]),
    click.option("--min-hold", type=SECONDS, default=0.0, metavar="SECS", help=HELP["min_hold"]),
    click.option("--kill-after", type=SECONDS, metavar="SECS", help=HELP["kill_after"]),
    click.option(
        "--on-loss",
        type=click.Choice([each.value for each in OnLoss]),
        default="term",
        show_default=True,
        help=HELP["on_loss"],
    ),
    click.option("--lost-exit-code", "lost", type=STATUS, default=LOST, show_default=True, help=HELP["lost"]),
    click.option("--owner", type=NAME, metavar="NAME", help=HELP["owner"]),
    prefix_option,
    max_ttl_option(0.1),
    strict_option,
    trust_option,
    click.option("-c", "--command", "shell", metavar="STRING", help="Run this by $SHELL -c, in place of CMD."),
    click.option("-v", "--verbose", is_flag=True, help="Say what happens."),
    click.argument("name", type=NAME),
    click.argument("command", metavar="[--] CMD...", nargs=-1, type=click.UNPROCESSED),
)


@click.command(cls=_Run, context_settings={"allow_interspersed_args": False})
@with_all_options
def run(**given: Any) -> None:
    """Run CMD while the lock NAME is held. Options come before NAME; only -c STRING may follow it.

    The lock is renewed while CMD runs, and released when it has ended. If the renewals fail, CMD is killed before
    another holder can have the lock. Signals are passed on to CMD and its children.

    The exit status is that of CMD, or 128 + n if signal n has killed it; 1 (-E) if the lock was busy; 64 for an error
    of usage, 69 if too few masters answer, 75 if the lock was lost; 126 or 127 if CMD cannot be executed.
    """
    job = job_of(**given)
    try:
        status = job.run()
    except Exception:
        traceback.print_exc()
        status = SOFTWARE
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    # PID 1 of a container does not die of its own signal.
    sys.exit(abs(status) + SIGNALLED if status < 0 else status)


def job_of(
    nonblock: bool,
    wait: float | None,
    shared: bool,
    exclusive: bool,
    slots: int | None,
    fair: bool,
    fence: bool,
    kill_after: float | None,
    on_loss: str,
    shell: str | None,
    command: tuple[str, ...],
    ttl: float,
    **rest: Any,
) -> Job:
    shell, command = _program(shell, command)
    _refuse_contradictions(shell, command, shared, exclusive, slots, fair or fence, nonblock and bool(wait))
    before = min(KILL_AFTER, ttl / 2) if kill_after is None else kill_after
    _refuse_times(ttl, rest["max_ttl"], before)
    of_client = {name: rest.pop(name) for name in OF_CLIENT}
    return Job(
        command=[os.environ.get("SHELL") or "/bin/sh", "-c", shell] if shell is not None else list(command),
        client=_client_of(ttl=ttl, patience=wait or 0.0, **of_client),
        wait=0 if nonblock else wait,
        slots=slots or 0,
        shared=shared,
        options={} if shared or slots else {"fair": fair, "fence": fence},
        kill_after=before,
        on_loss=OnLoss(on_loss),
        **rest,
    )


def _refuse_times(ttl: float, max_ttl: float, kill_after: float) -> None:
    if ttl > max_ttl:
        raise click.UsageError(
            f"--ttl: {ttl:g} s is above the --max-ttl of {max_ttl:g} s; give a shorter one, as the lock is renewed "
            "while CMD runs, or the --max-ttl of all your clients"
        )
    # A renewal begins when a third of the ttl is over.
    if kill_after > ttl / 2:
        raise click.UsageError(f"--kill-after: at most half of the ttl of {ttl:g} s, or renewals have no time")


OF_CLIENT = ("masters", "prefix", "owner", "max_ttl", "strict", "trust_persistence")


def _program(shell: str | None, command: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    # -c may follow NAME, as for flock.
    if shell is None and len(command) == 2 and command[0] in ("-c", "--command"):
        return command[1], ()
    if command[:1] == ("--",):
        return shell, command[1:]
    if command and command[0].startswith("-"):
        raise click.UsageError(
            f"{command[0]} follows NAME: options come before it, and only -c STRING may be behind it; "
            "put -- before a program of that name"
        )
    return shell, command


def _client_of(
    masters: tuple[str, ...], ttl: float, patience: float, prefix: bytes, owner: Any, **of_guard: Any
) -> dict[str, Any]:
    try:
        return {
            "masters": list(masters) or masters_from_env(),
            "ttl": ttl,
            "patience": patience,
            "prefix": prefix,
            "guard": Guard(**of_guard),
            "owner": _owner(owner),
        }
    except (ConfigurationError, TypeError) as error:
        raise click.UsageError(str(error)) from error


def _owner(given: str | bytes | None) -> str:
    inherited = os.environ.get("REDLATCH_OWNER")
    if given is None and inherited is not None:
        given = NAME.convert(inherited, None, None)
    # Other bytes become escapes, which cannot be printed and are refused.
    return owner_name(given.decode(errors="surrogateescape") if isinstance(given, bytes) else given)


def _refuse_contradictions(
    shell: str | None,
    command: tuple[str, ...],
    shared: bool,
    exclusive: bool,
    slots: int | None,
    alone: bool,
    both: bool,
) -> None:
    # `alone`: an option needs a lock with one holder. `both`: -n with a wait.
    if (shell is None) == (not command):
        raise click.UsageError("a program is needed: CMD..., or -c STRING")
    if sum([shared, exclusive, slots is not None]) > 1:
        raise click.UsageError("-s, -x and --slots exclude each other")
    if (shared or slots is not None) and alone:
        raise click.UsageError("--fair and --fence need a lock with one holder, without -s and --slots")
    if both:
        raise click.UsageError("-n does not wait, so -w does not go with it")
