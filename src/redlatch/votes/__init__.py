"""Commands for the masters, and how their votes are counted. No I/O and no lock state."""
