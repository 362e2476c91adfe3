"""Find out in the handshake if a server runs scripts for this user; and a handshake without them.

With `scripts="auto"` a master uses transactions only if it refuses EVAL, and also EVALSHA or SCRIPT LOAD (by rights, or
because it does not know them), and allows WATCH, MULTI, EXEC and DISCARD. If it refuses both ways, nothing changes: the
calls that need a script fail, and name the right.
"""

from __future__ import annotations

from typing import Any, Literal

import redis.exceptions as redis_errors
from hiredis import Reader

from ...errors import ConfigurationError, MasterRefused
from ...votes import condition_scripts, family_scripts, scripts
from ...votes.commands import pack
from ...votes.scripts import Script
from ..bridge.transactions import RIGHTS, SCRIPT_RIGHTS, Steps, transaction_for
from .conversation import Conversation

Scripts = Literal["auto", "watch", "lua"]
MODES: tuple[Scripts, ...] = ("auto", "watch", "lua")

SCRIPTS = scripts.ALL + family_scripts.ALL + condition_scripts.ALL

# A script without keys, so that no right to a key can be missing.
_PROBE = Script("return 1", keys=0)
PROBE = pack(b"EVAL", _PROBE.text, _PROBE.keys)
_PROBE_BY_SHA = pack(b"EVALSHA", _PROBE.sha, _PROBE.keys)

# These change nothing. The key of WATCH is empty: the user may lack the right to it, which is another error. The last
# EXEC ends the transaction if DISCARD is refused; DISCARD ends it if EXEC is refused.
_WORDS = (b"WATCH", b""), (b"MULTI",), (b"EXEC",), (b"MULTI",), (b"DISCARD",), (b"EXEC",)
TRANSACTION = [pack(*words) for words in _WORDS]


def scripts_of(mode: object) -> Scripts:
    for known in MODES:
        if mode == known:
            return known
    raise ConfigurationError(f"scripts: 'auto', 'watch' or 'lua' is needed, got {mode!r}")


def preparing(mode: Scripts) -> list[bytes]:
    if mode == "watch":
        return TRANSACTION
    return [*[pack(b"SCRIPT", b"LOAD", script.text) for script in SCRIPTS], PROBE]


def uses_scripts(conversation: Conversation, mode: Scripts, address: str, prepared: list[Any]) -> bool:
    """Return whether the commands of locks call scripts on this connection.

    Raises:
        MasterRefused: the mode is impossible here; the message says which rights are missing.
    """
    if mode == "watch":
        refusal = _refusal(prepared[:-1])
        if refusal is not None:
            raise MasterRefused(
                f"{address} refuses transactions, which scripts='watch' needs ({refusal}); give the user the rights "
                f"{RIGHTS}, or the client scripts='auto'"
            )
        return False
    refusal = _refusal(prepared[-1:])
    if refusal is None:
        return True
    by_sha, *transaction = conversation.ask([_PROBE_BY_SHA, *TRANSACTION])
    if _refusal([by_sha, *prepared[:-1]]) is None:
        return True
    if mode == "lua":
        raise MasterRefused(
            f"{address} refuses scripts, which scripts='lua' needs ({refusal}); give the user the rights "
            f"{SCRIPT_RIGHTS}, or the client scripts='auto', which also works with {RIGHTS}"
        )
    return _refusal(transaction[:-1]) is not None


def refuses_eval(mode: Scripts, prepared: list[Any]) -> bool:
    """Return whether EVAL is refused; EVALSHA may still work."""
    return mode == "watch" or _refusal(prepared[-1:]) is not None


def ask_without_scripts(conversation: Conversation, commands: list[bytes]) -> list[Any]:
    """Perform each call of a script as a transaction."""
    replies: list[Any] = []
    waiting: list[bytes] = []
    for command in commands:
        steps = transaction_for(_words_of(command))
        if steps is None:
            waiting.append(command)
            continue
        if waiting:
            replies += conversation.ask(waiting)
            waiting = []
        replies.append(_performed(conversation, steps))
    return replies + conversation.ask(waiting) if waiting else replies


def _performed(conversation: Conversation, steps: Steps) -> Any:
    replies: list[Any] | None = None
    while True:
        try:
            batch = next(steps) if replies is None else steps.send(replies)
        except StopIteration as ended:
            return ended.value
        replies = conversation.ask([pack(*words) for words in batch])


def _words_of(command: bytes) -> list[bytes]:
    reader = Reader()
    reader.feed(command)
    words: list[bytes] = reader.gets()
    return words


def _refusal(answers: list[Any]) -> Exception | None:
    for answer in answers:
        if isinstance(answer, redis_errors.ResponseError) and _is_about_the_command(str(answer)):
            return answer
    return None


def _is_about_the_command(text: str) -> bool:
    """Return whether an error is about the command, and not about its key or the state of the server."""
    # Some platforms have words of their own for a command that they do not allow. A refused EXEC is answered with
    # "EXECABORT Transaction discarded because of: NOPERM ...".
    if text.startswith("ERR Lua scripts ") and text.endswith("keys are not supported."):
        # Amazon ElastiCache Serverless refuses scripts without keys only. `votes.redaction` hides "without any input".
        return False
    return text.startswith("ERR ") or ("NOPERM" in text and "command" in text)
