"""Serving the browser on this machine's loopback interface."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette

from tadnn.errors import RequestError

if TYPE_CHECKING:
    import uvicorn

HOST: Final = "127.0.0.1"
PORT: Final = 8642
_TRIED: Final = 50
_LONGEST_HEAD: Final = 2**20


def open_port(port: int) -> socket.socket:
    """Return a listening socket on the loopback interface; 0 takes any free port.

    Raises:
        RequestError: the port is in use; the next free one is named.
    """
    if not 0 <= port < 2**16:
        raise RequestError(f"a port is a number from 0 to 65535; got {port}")
    try:
        return _bound(port)
    except OSError as error:
        free = _next_free(port)
        offer = f"; --port {free} is free" if free is not None else ""
        raise RequestError(
            f"cannot listen on port {port}: {error.strerror or error}{offer}"
        ) from error


def new_server(app: Starlette) -> uvicorn.Server:
    """Return the server of an application; ``run(sockets=[...])`` starts it."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        # What is shorter gets a sentence, not only a closed connection.
        h11_max_incomplete_event_size=_LONGEST_HEAD,
        http="h11",
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def serve(app: Starlette, listening: socket.socket) -> None:
    """Answer requests until interrupted."""
    new_server(app).run(sockets=[listening])


def _bound(port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A server that just ended leaves its port waiting; it may be taken again at once.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((HOST, port))
        opened.listen(128)
    except OSError:
        opened.close()
        raise
    return opened


def _next_free(port: int) -> int | None:
    for candidate in range(port + 1, min(port + 1 + _TRIED, 2**16)):
        try:
            _bound(candidate).close()
        except OSError:
            continue
        return candidate
    return None
