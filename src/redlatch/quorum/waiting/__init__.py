"""Waiting for a lock: the queues of this process, the pushes of the masters, and the pauses between attempts."""
