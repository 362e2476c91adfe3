"""The masters that a user names: URLs and redis-py clients, and how to open a socket to each server.

redis-py parses the URLs, handles TLS options and credentials, and opens the socket. redlatch does the rest.
"""
