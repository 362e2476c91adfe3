"""The options of the guard: `redlatch.Guard`."""

from __future__ import annotations

from dataclasses import dataclass

from redlatch.errors import ConfigurationError

# In seconds.
LONGEST_MAX_TTL = 7 * 86_400


@dataclass(frozen=True, slots=True)
class Guard:
    """Options of the guard, which keeps a master out that may have forgotten locks, or whose clock has jumped.

    A client of a single master keeps on using it after it has forgotten locks, and puts its own locks in doubt until
    the master confirms them (see docs/safety.md). All clients of the same masters and prefix must give the same
    `trust_persistence` and `strict`; one that differs is refused.

    Args:
        max_ttl: the longest ttl that a lock may have, in seconds; the largest of all clients counts. A master is kept
            out for the longest ttl in use, or for `max_ttl` if too few other masters know that. Default 60.
        trust_persistence: whether a master that was restarted counts as having kept every key: it must have an
            append-only file, and should always write it (``appendfsync always``). A replica that was promoted is not
            trusted. Default False.
        strict: whether a single master that has forgotten locks is kept out, too: no lock can be acquired for
            `max_ttl`. Default False.

    Raises:
        ConfigurationError, TypeError: an argument cannot work.
    """

    max_ttl: float = 60.0
    trust_persistence: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.max_ttl, bool) or not isinstance(self.max_ttl, (int, float)):
            raise TypeError(f"guard: max_ttl in seconds is needed, not {type(self.max_ttl).__name__}")
        for name in ("trust_persistence", "strict"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"guard: {name} is True or False, not {type(getattr(self, name)).__name__}")
        if not 0.001 <= self.max_ttl <= LONGEST_MAX_TTL:
            raise ConfigurationError(
                f"guard: a max_ttl of 0.001 to {LONGEST_MAX_TTL} seconds is needed; got {self.max_ttl}"
            )

    @property
    def max_ttl_ms(self) -> int:
        return round(self.max_ttl * 1000)


DEFAULT_GUARD = Guard()
