"""Connecting to servers that a test scripts."""
