"""What every request has to pass, and what every answer carries."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LONGEST: Final = 2048
"""Bytes of a request's path and query."""

_OWN: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_HEADERS: Final = {
    # No page runs or loads anything that this server did not send.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Refuses requests that no page of ours makes.

    A browser sends a foreign ``Host`` when another site's name was made to point here (DNS
    rebinding), and ``Sec-Fetch-Site: cross-site`` when another site's page asks.
    """

    def __init__(self, app: ASGIApp, refuse: ASGIApp) -> None:
        self._app, self._refuse = app, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = _refusal(scope)
        if refusal is None:
            await self._app(scope, receive, dressed)
            return
        await self._refuse({**scope, "refusal": refusal}, receive, dressed)


def _refusal(scope: Scope) -> tuple[int, str] | None:
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        name = None
    if name not in _OWN:
        return 400, f"this server answers to 127.0.0.1 and localhost only; Host was {host[:80]!r}"
    if (
        headers.get("sec-fetch-site") == "cross-site"
        and headers.get("sec-fetch-mode") != "navigate"
    ):
        return 403, "another site's page may not ask this server"
    size = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    if size > LONGEST:
        return 414, f"a request's address has at most {LONGEST} bytes; this one has {size}"
    segments = scope["path"].split("/")
    if ".." in segments or "\x00" in scope["path"] or "\\" in scope["path"]:
        return 400, "an address names a page; '..', backslashes and zero bytes lead nowhere"
    return None
