"""The states of a claim, and the code that changes them."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest
from sim.drawing import draw, draw_foreign
from sim.schedule import run

import redlatch
from redlatch import impl

PACKAGE = Path(redlatch.__file__).parent

# This function may not call anything between its check and its last step.
ALLOWED = {("quorum/waiting/queues.py", "hand_off")}


@pytest.fixture
def claims() -> ModuleType:
    """The pure build, the only one in which a test can see each change of an attribute."""
    return impl.load("python").module("quorum.claim")


def test_every_state_has_a_row_and_every_row_leads_back_to_free(claims: ModuleType) -> None:
    states = set(range(8))
    assert set(claims.TRANSITIONS) == states
    assert all(set(row) <= states for row in claims.TRANSITIONS.values())
    for state in states:
        reached, new = {state}, {state}
        while new:
            new = {after for before in new for after in claims.TRANSITIONS[before]} - reached
            reached |= new
        assert claims.FREE in reached, state


def test_a_claim_is_held_in_one_state(implementation: impl.Implementation) -> None:
    claim = implementation.module("quorum.claim").Claim("name")
    held = []
    for state in range(8):
        claim.state = state
        held += [state] * claim.is_held()
    assert held == [impl.load("python").module("quorum.claim").HELD]


def test_simulated_holds_change_their_states_as_the_table_says(
    claims: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = claims.Claim.state
    seen: set[tuple[int, int]] = set()

    def change(hold: object, after: int) -> None:
        try:
            seen.add((slot.__get__(hold), after))
        except AttributeError:
            # This is its first state.
            assert after == claims.FREE
        slot.__set__(hold, after)

    monkeypatch.setattr(claims.Claim, "state", property(slot.__get__, change))
    monkeypatch.setattr(impl, "current", impl.load("python"))
    for seed in range(40):
        for plan in (draw(seed), draw_foreign(seed)):
            assert not run(plan).wrong
    strange = {(before, after) for before, after in seen if after not in claims.TRANSITIONS[before]}
    assert not strange
    # At least this many different changes were seen.
    assert len(seen) > 12


def test_only_the_claim_writes_its_state_but_for_one_function() -> None:
    writers = set()
    for path in sorted((PACKAGE / "quorum").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and path.name != "claim.py":
                writers |= {
                    (str(path.relative_to(PACKAGE)), function.name)
                    for node in ast.walk(function)
                    if isinstance(node, ast.Assign)
                    for target in node.targets
                    if isinstance(target, ast.Attribute) and target.attr == "state"
                }
    assert writers == ALLOWED
