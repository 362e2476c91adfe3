"""A server whose replies a test writes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from hiredis import Reader

Answer = Callable[[list[bytes]], bytes]


@contextlib.contextmanager
def scripted(answer: Answer) -> Iterator[str]:
    """Serve `answer(command)` for every command on one connection after another; yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                if over.is_set():
                    sock.close()
                    return
                with sock, contextlib.suppress(OSError):
                    reader = Reader()
                    while data := sock.recv(65536):
                        reader.feed(data)
                        while (command := reader.gets()) is not False:
                            reply = answer(command)
                            if reply == b"":
                                raise ConnectionError
                            sock.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        host, port = listener.getsockname()
        try:
            yield f"redis://{host}:{port}"
        finally:
            over.set()
            socket.create_connection((host, port)).close()
            thread.join()
