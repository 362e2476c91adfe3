"""`redlatch run`: run a program while a lock is held, as `flock` does on one machine.

`command` has the command line, `job` takes the lock and returns the exit status, `supervisor` watches the program while
it runs, `program` is the program's process, and `keeper` kills it if this process cannot.
"""
