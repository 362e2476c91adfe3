"""The errors for a list of masters that is refused: one server is in it twice, or a master has refused the client."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ConfigurationError, MasterRefused
from ..masters.master import Master


def twin_of(index: int, run_id: str, known: Mapping[int, str], masters: list[Master]) -> int | None:
    """Return the index of another master that is the same server, or None.

    Args:
        known: the run_id of each server that is known, by the index of its master.
    """
    me = masters[index]
    for other, theirs in known.items():
        if other != index and theirs == run_id and not (me.by_db and me.db != masters[other].db):
            return other
    return None


def refuse_twin(index: int, twin: int, masters: list[Master]) -> MasterRefused:
    """Return the refusal of a master whose address differs from that of another, but which is the same server."""
    return MasterRefused(
        f"{masters[index].address} is the same server as masters[{twin}] ({masters[twin].address}): "
        "they have one run_id; a quorum needs independent servers"
    )


def refuse_list(index: int, refusal: MasterRefused, masters: list[Master]) -> ConfigurationError:
    """Return the error of every call after a master was refused at the first try."""
    address = masters[index].address
    place = getattr(masters[index], "listed_as", None) or f"masters[{index}]"
    where = place if address in str(refusal) else f"{place} ({address})"
    return ConfigurationError(f"{where}: {refusal}")
