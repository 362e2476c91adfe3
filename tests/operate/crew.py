"""A process that locks and unlocks while the masters are replaced: `python -m operate.crew NAME OLD... -- NEW...`.

It prints "ready" when it has had the lock once. At the end of its input it prints one JSON object: when it held the
lock, by CLOCK_BOOTTIME in ns, its longest wait in seconds, and the errors of its releases.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from redlatch import Client, LockError

TTL = 1.0


def main() -> None:
    name, *lists = sys.argv[1:]
    middle = lists.index("--")
    held: list[tuple[int, int]] = []
    longest, errors = 0.0, []
    ending = threading.Event()
    threading.Thread(target=wait_for_end, args=(ending,), daemon=True).start()
    with Client(lists[:middle], next=lists[middle + 1 :], ttl=TTL, attempt_timeout=1.0) as client:
        while not ending.is_set():
            lock = client.lock(name)
            asked = time.monotonic()
            lock.acquire()
            since = now()
            longest = max(longest, time.monotonic() - asked)
            if not held:
                print("ready", flush=True)
            time.sleep(0.001)  # the work
            held.append((since, min(now(), lock.deadline_ns)))
            try:
                lock.release()
            except LockError as error:
                errors.append(f"{type(error).__name__}: {error}")
    print(json.dumps({"held": held, "longest": longest, "errors": errors, "masters": repr(client)}))


def wait_for_end(ending: threading.Event) -> None:
    sys.stdin.read()
    ending.set()


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    main()
