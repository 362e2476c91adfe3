"""The family of locks: the part that the sync and the asyncio interface share."""
