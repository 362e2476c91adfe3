"""Bytes and sockets: sends commands to N masters and counts their votes; knows nothing of locks.

`engine` has the connections in use, `dial` makes them, and `bridge` stands in for servers that do not speak our
commands. `engine` imports neither of the others, and `bridge` does not import `dial`.
"""
