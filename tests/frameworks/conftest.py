"""Fixtures of the frameworks' tests: web servers that run in a thread, and masters that a test may break."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from support.faces import PATIENCE, await_true

# Starts a server for an application, and returns a client of it.
Serve = Callable[[Any], httpx.Client]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve ASGI applications on loopback, each by uvicorn in a thread."""
    with contextlib.ExitStack() as stack:

        def start(app: Any) -> httpx.Client:
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="auto", ws="none"))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
            thread.start()

            def stop() -> None:
                server.should_exit = True
                thread.join(PATIENCE)
                assert not thread.is_alive()

            stack.callback(stop)
            await_true(lambda: server.started or not thread.is_alive())
            assert server.started
            url = f"http://127.0.0.1:{sock.getsockname()[1]}"
            return stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))

        yield start
