"""Bytes and sockets: sends commands to N masters and counts their votes; knows nothing of locks."""
