"""Who may ask what: Host, Origin, tokens, and the headers that every answer carries.

Host     a page elsewhere can point its own name at 127.0.0.1 (DNS rebinding); so only localhost, IP addresses and the
         configured names are taken. An IP address cannot be rebound.
Origin   when a browser names one, it must be this very page.
Tokens   compared in constant time. Reading needs the read token where one is configured, acting always the act token.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grpo_sentinel.web.state import WebState

log = logging.getLogger(__name__)

OPEN_PATHS = ("/", "/healthz", "/livez", "/readyz", "/metrics")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Refuse what is not allowed before any endpoint sees it; stamp every answer."""

    def __init__(self, app: ASGIApp, state: WebState) -> None:
        self._app = app
        self._state = state
        self._hosts = {"localhost", *(host.lower() for host in state.hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request, or refuse it with one sentence as JSON. Other protocols are closed by the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, stamped)
            return
        status, text = refusal
        extra = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        await JSONResponse({"error": text}, status, headers=extra)(scope, receive, stamped)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if len(headers.getlist("host")) > 1 or not self._known(host):
            return 403, f"host {host!r} is not served here; use localhost or add it to http.allowed_hosts"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, f"requests from {origin!r} are not taken"
        if scope["method"] in ("GET", "HEAD"):
            open_to_all = self._state.read_token is None or path in OPEN_PATHS or path.startswith("/static/")
            if not open_to_all and not self.may_read(headers):
                return 401, "reading needs the read token as a bearer token: read-token in the state directory"
            return None
        if scope["method"] == "POST":
            return None if self.may_act(headers) else (401, "acting needs the act token as a bearer token")
        return 405, f"method {scope['method']} is not served here"

    def _known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def may_read(self, headers: Headers) -> bool:
        """Tell whether a request carries the read token or the act token."""
        return same(bearer(headers), self._state.read_token) or self.may_act(headers)

    def may_act(self, headers: Headers) -> bool:
        """Tell whether a request carries the act token."""
        return same(bearer(headers), self._state.act_token)


def bearer(headers: Headers) -> str:
    """Take the token out of the Authorization header; "" when there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def same(given: str, wanted: str | None) -> bool:
    """Compare two tokens in constant time; an empty or missing one is never right."""
    return bool(given) and bool(wanted) and hmac.compare_digest(given.encode(), str(wanted).encode())
