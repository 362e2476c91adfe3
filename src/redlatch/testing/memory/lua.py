"""Runs the scripts with Lua 5.1, as the servers do (`lupa`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from lupa.lua51 import LuaError, LuaRuntime, lua_type
except ImportError as error:
    raise ImportError(f"masters in memory need lupa: pip install 'redlatch[testing]' ({error})") from error


class Refusal(Exception): ...


class Status(str):
    __slots__ = ()


Run = Callable[[list[bytes]], Any]

_lua = LuaRuntime(encoding=None, unpack_returned_tuples=False, register_eval=False, register_builtins=False)
_prepared: dict[bytes, Any] = {}


def run(text: bytes, keys: tuple[bytes, ...], arguments: tuple[bytes, ...], execute: Run) -> Any:
    def call(*words: Any) -> Any:
        return _to_lua(execute([_word(word) for word in words]))

    def pcall(*words: Any) -> Any:
        try:
            return call(*words)
        except Refusal as refusal:
            return _lua.table_from({b"err": str(refusal).encode()})

    function = _prepared.get(text)
    if function is None:
        wrapped = b"return function(call,pcall,KEYS,ARGV) local redis={call=call,pcall=pcall}\n" + text + b"\nend"
        function = _prepared[text] = _lua.execute(wrapped)
    try:
        return _from_lua(function(call, pcall, _lua.table(*keys), _lua.table(*arguments)))
    except LuaError as error:
        raise Refusal(f"ERR {error}") from error


def _word(word: Any) -> bytes:
    if isinstance(word, bytes):
        return word
    if isinstance(word, bool) or not isinstance(word, (int, float)):
        raise Refusal("ERR Lua redis lib command arguments must be strings or integers")
    return b"%d" % word if word == int(word) else b"%.17g" % word


def _to_lua(reply: Any) -> Any:
    if reply is None:
        return False
    if isinstance(reply, Status):
        return _lua.table_from({b"ok": reply.encode()})
    if isinstance(reply, list):
        return _lua.table(*[_to_lua(item) for item in reply])
    return reply


def _from_lua(value: Any) -> Any:
    if value is True:
        return 1
    if value is None or value is False:
        return None
    if isinstance(value, (int, float)):
        return int(value)
    return _from_table(value) if lua_type(value) == "table" else value


def _from_table(table: Any) -> Any:
    if table[b"err"] is not None:
        return Refusal(table[b"err"].decode())
    if table[b"ok"] is not None:
        return Status(table[b"ok"].decode())
    items: list[Any] = []
    while (item := table[len(items) + 1]) is not None:
        items.append(_from_lua(item))
    return items
