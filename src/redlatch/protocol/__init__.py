"""Decisions without I/O: commands as bytes, votes into verdicts, the clock and the random passed in."""
