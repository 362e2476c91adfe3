"""`redlatch demo`: a flash sale with real processes, real masters and real crashes.

Many buyers in several processes want a few items. The stock is a number in an unprotected plain file: a buyer reads it,
pauses for a moment and writes one less. Without a lock this sells more items than there are. With a lock it must not,
although the demo kills a master half-way, and then a buyer process that holds the lock, both by SIGKILL.
"""
