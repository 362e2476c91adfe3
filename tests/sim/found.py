"""Plans that once broke a rule, kept as data in `found.json`: their seeds may draw other plans today."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from .parts import Fault
from .plan import Action, Extension, Move, Plan

FILE = Path(__file__).with_name("found.json")
PARTS = {"faults": Fault, "moves": Move, "extends": Extension}


def load(file: Path = FILE) -> dict[str, Plan]:
    """Return the plans by name."""
    return {name: _made(Plan, data) for name, data in json.loads(file.read_text()).items()}


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


def _made(kind: Any, data: dict[str, Any]) -> Any:
    """Return a plan, or a part of one."""
    return kind(**{name: _value(name, value) for name, value in data.items()})


def _value(name: str, value: Any) -> Any:
    if name == "tasks":
        return tuple((client, tuple(_made(Action, action) for action in actions)) for client, actions in value)
    if name in PARTS:
        return tuple(_made(PARTS[name], one) for one in value)
    return tuple(_value("", item) for item in value) if isinstance(value, list) else value
