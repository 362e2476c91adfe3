"""The tokens of attempts."""

from __future__ import annotations

from collections.abc import Callable

from ..votes.payloads import joined
from ..votes.units import SECOND


class Tokens:
    """A stock of tokens. Each attempt takes a new one, so no token is used twice.

    Args:
        draw: returns more tokens.
        label: returns the label of the tokens of the next second (see `votes.label`), if they have one.
    """

    def __init__(self, draw: Callable[[], list[bytes]], label: Callable[[], bytes] | None = None) -> None:
        self._draw = draw
        self._stock: list[bytes] = []
        self._client_token = b""
        self._label_of_now = label
        self._label = b""
        self._label_until_ns = 0

    def take(self, now_ns: int) -> bytes:
        if self._label_of_now is None:
            return self.take_plain()
        if now_ns >= self._label_until_ns:
            self._label = self._label_of_now()
            self._label_until_ns = now_ns + SECOND
        return joined(self.take_plain(), self._label)

    def take_plain(self) -> bytes:
        while True:
            try:
                return self._stock.pop()
            except IndexError:
                self._stock.extend(self._draw())

    def client_token(self) -> bytes:
        """Return the token that names this client in queues on the masters."""
        if not self._client_token:
            self._client_token = self.take_plain()
        return self._client_token
