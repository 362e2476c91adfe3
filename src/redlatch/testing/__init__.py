"""For tests of code that uses redlatch: real masters on this machine, and how to empty them between two tests."""

from redlatch.testing.cleaning import clear
from redlatch.testing.embedded import Masters, find_server, masters
from redlatch.testing.sentinels import Sentinels, sentinels

__all__ = ["Masters", "Sentinels", "clear", "find_server", "masters", "sentinels"]
