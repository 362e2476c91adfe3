"""What runs the protocol's generators: one driver for threads, one for asyncio."""
