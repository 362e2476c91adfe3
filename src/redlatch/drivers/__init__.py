"""The drivers run the iterators of `quorum`: one driver for threads, one for asyncio."""
