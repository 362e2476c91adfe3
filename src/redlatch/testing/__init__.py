"""For tests of code that uses redlatch: real masters on this machine."""

from redlatch.testing.embedded import Masters, find_server, masters

__all__ = ["Masters", "find_server", "masters"]
