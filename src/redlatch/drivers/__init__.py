"""The drivers run the generators of `quorum`: one driver for threads, one for asyncio."""
