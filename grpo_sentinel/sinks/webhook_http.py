"""One bounded HTTP POST with the standard library, and secrets that never stand in a configuration."""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from grpo_sentinel._version import __version__
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.scrub import learn

MAX_ANSWER_BYTES = 4096
_LATER = (408, 425, 429)  # of the 4xx: the same request may be taken later


class DeliveryError(Exception):
    """A message was not taken; `final` when the same one will never be. The text holds no secret."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret in a file or an environment variable, read anew each time as files are rotated."""

    env: str | None = None
    file: str | None = None

    def read(self) -> str:
        """Give the secret, "" when there is none; raises `ConfigError` for a file that cannot be read."""
        if self.file is not None:
            try:
                found = Path(self.file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"cannot read the secret in {self.file}: {error}; give a readable file") from error
        else:
            found = os.environ.get(self.env, "").strip() if self.env else ""
        learn(*found.split())
        return found

    @property
    def place(self) -> str:
        """Say where it is looked for."""
        return self.file or (f"${self.env}" if self.env else "nowhere")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to another host, and turns POST into GET."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def no_redirects(context: ssl.SSLContext | None) -> Callable[..., Any]:
    """Give a function like `urlopen` that follows no redirect; with a context, it trusts what that one does."""
    if context is None:
        return _OPENER.open
    return urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context)).open


def post_json(url: str, body: Any, *, timeout_seconds: float, token: Secret | None = None) -> int:
    """POST strict JSON and give the status, 2xx. Waits at most `timeout_seconds` for each answer of the network.

    Raises `DeliveryError`, final for statuses that a retry cannot change.
    """
    shown = show(url)
    headers: Mapping[str, str] = {"Content-Type": "application/json", "User-Agent": f"grpo-sentinel/{__version__}"}
    bearer = token.read() if token is not None else ""
    if bearer:
        headers = {**headers, "Authorization": f"Bearer {bearer}"}
    try:
        if urlsplit(url).scheme not in ("http", "https"):
            raise DeliveryError(f"{shown} is no http or https address", final=True)
        data = json.dumps(body, allow_nan=False).encode("ascii")
        address, credentials = without_credentials(url)
        request = urllib.request.Request(address, data=data, headers={**credentials, **headers}, method="POST")  # noqa: S310 - see above
        with _OPENER.open(request, timeout=timeout_seconds) as answer:
            answer.read(MAX_ANSWER_BYTES)
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            final = 300 <= error.code < 500 and error.code not in _LATER
            raise DeliveryError(f"{shown} answered {error.code} {error.reason}", final=final) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, TimeoutError):
            reason = f"no answer within {timeout_seconds:g} s"
        final = isinstance(error, ValueError) and not isinstance(error, OSError)
        text = type(error).__name__ if final else reason  # a text about a bad URL or header may quote it
        raise DeliveryError(f"{shown}: {text}", final=final) from None


def without_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Take `user:password@` out of an address: it goes as a header, which is the only way that it can go."""
    parts = urlsplit(url)
    if parts.username is None:
        return url, {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return plain, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"}


def show(url: str) -> str:
    """Name an address without its path, query and credentials, which may be secret."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}"
    except ValueError:
        return "an address that is not a URL"
