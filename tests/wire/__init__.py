"""Sockets, connecting and replies without servers: socket pairs, and servers that a test scripts."""
