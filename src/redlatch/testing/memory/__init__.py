"""Clients on masters in memory, with virtual time. `redlatch.testing` has the public names."""
