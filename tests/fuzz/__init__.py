"""Arbitrary bytes from a server, in arbitrary pieces: both builds count the same votes or close the connection.

Memory stays bounded.
"""
