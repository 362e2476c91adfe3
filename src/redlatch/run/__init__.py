"""`redlatch run`: run a program while a lock is held, as `flock` does on one machine."""
