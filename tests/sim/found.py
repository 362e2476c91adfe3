"""Plans that once broke a rule, kept as data in `found.json`: their seeds may draw other plans today."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from .parts import Fault
from .plan import Action, Extension, Move, Plan

FILE = Path(__file__).with_name("found.json")


def load(file: Path = FILE) -> dict[str, Plan]:
    """Return the plans by name."""
    return {name: _plan(data) for name, data in json.loads(file.read_text()).items()}


def save(plans: dict[str, Plan], file: Path = FILE) -> None:
    """Write all plans, one per line."""
    lines = [f"{json.dumps(name)}: {json.dumps(_data(plan), separators=(',', ':'))}" for name, plan in plans.items()]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _data(value: Any) -> Any:
    """Return a plan, or a part of one, without the optional fields that have their default values."""
    if isinstance(value, (tuple, list)):
        return [_data(item) for item in value]
    if not isinstance(value, (Plan, Action, Extension, Fault, Move)):
        return value
    pairs = [(field, getattr(value, field.name)) for field in fields(value)]
    return {field.name: _data(found) for field, found in pairs if field.default is MISSING or found != field.default}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _plan(data: dict[str, Any]) -> Plan:
    tasks = tuple((client, tuple(_action(action) for action in actions)) for client, actions in data["tasks"])
    faults = tuple(Fault(**{name: _tuples(value) for name, value in fault.items()}) for fault in data["faults"])
    rest = {name: _tuples(value) for name, value in data.items() if name not in ("tasks", "faults", "moves")}
    moves = tuple(Move(**{name: _tuples(value) for name, value in move.items()}) for move in data.get("moves", ()))
    return Plan(**rest, tasks=tasks, faults=faults, moves=moves)


def _action(data: dict[str, Any]) -> Action:
    extends = tuple(
        Extension(**{name: _tuples(value) for name, value in one.items()}) for one in data.get("extends", ())
    )
    return Action(**{name: _tuples(value) for name, value in data.items() if name != "extends"}, extends=extends)
