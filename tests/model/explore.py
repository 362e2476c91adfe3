"""Searches all possible schedules breadth first, so that the first failure is a shortest one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from model.attempts import BROKEN, Event, Fences, State
from model.fence import Scheme


@dataclass(frozen=True)
class Found:
    """The result of a search.

    It has the number of states and steps, and a shortest schedule that breaks an invariant, if there is one.
    """

    states: int
    steps: int
    schedule: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.states:,} states, {self.steps:,} steps", *self.schedule])


def explore(scheme: Scheme) -> Found:
    """Search until all states were seen or an invariant broke."""
    enabled = gc.isenabled()
    # The search makes millions of tuples, none of them in a cycle.
    gc.disable()
    try:
        return _explore(Fences(scheme))
    finally:
        if enabled:
            gc.enable()


def _explore(model: Fences) -> Found:
    parents: dict[State, State | None] = {model.first: None}
    moves, settled, canonical = model.moves, model.settled, model.canonical
    edge = [model.first]
    steps = 0
    while edge:
        reached = []
        for state in edge:
            for masters, clients, event in moves(state):
                if clients == BROKEN:
                    return Found(len(parents), steps, tuple(_schedule(model, parents, state, event)))
                steps += 1
                after = canonical(settled(masters, clients))
                if after not in parents:
                    parents[after] = state
                    reached.append(after)
        edge = reached
    return Found(len(parents), steps)


def _schedule(model: Fences, parents: dict[State, State | None], last: State, broken: Event) -> Iterator[str]:
    """Repeat the schedule from the first state without renaming masters and clients, and yield its steps as text."""
    way: list[State] = []
    state: State | None = last
    while state is not None:
        way.append(state)
        state = parents[state]
    here = model.first
    for _, after in pairwise(reversed(way)):
        for masters, clients, event in model.moves(here):
            if clients != BROKEN and model.canonical(reached := model.settled(masters, clients)) == after:
                yield _told(event)
                here = reached
                break
    yield next(_told(event) for _, clients, event in model.moves(here) if clients == BROKEN and event[3] == broken[3])


def _told(event: Event) -> str:
    who, what, *rest = event
    if not rest:
        return f"master {who} {what}"
    return f"client {who} {what} {rest[0]}" + "".join(f": {invariant}" for invariant in rest[1:])
