"""The engine: links, their sockets and FIFOs, votes, pushes and horizons."""
