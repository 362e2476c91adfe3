"""Connecting: the handshake, credentials, scripts, and Sentinel."""
