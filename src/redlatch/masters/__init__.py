"""The masters that a user names: URLs and redis-py clients, and how to open a socket to each server.

redis-py parses the URLs and handles TLS options and credentials. It makes a `Connection` object, which opens the socket
(`Server.connect`). redlatch does everything after that.

    server       one server: its address, its credentials, and its socket
    group        the sentinels of a master
    master       a server that votes
    urls         a master from a URL
    clients      a master from a redis-py client
    listed       the masters that the arguments of a client name
"""
