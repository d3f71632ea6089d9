"""The token that reading needs: loopback is open to everybody on the node, and the page shows runs and samples.

http.read_token ─▶ http.read_token_file ─▶ $http.read_token_env ─▶ <state>/read-token     0600, made once, kept

One token for all sidecars of a user, so that an address which was opened once goes on working after a restart.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from grpo_sentinel.config import Config
from grpo_sentinel.daemon.parts import MIN_TOKEN, Say
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.scrub import learn

NAME = "read-token"


def read_token(config: Config, state: Path, say: Say) -> str | None:
    """Give the token that reading needs; None when everybody may read.

    What cannot be used is said, and the user's own token is taken instead: nothing opens by a mistake.
    """
    token = config.http.read_token or _given(config, say)
    if token is None and config.http.open_reading:
        return None
    if not token:
        try:
            token = _own(state)
        except (OSError, SentinelError) as error:
            token = secrets.token_urlsafe(24)
            why = getattr(error, "strerror", None) or error
            once = "reading needs a token of this start alone, which only a terminal is shown: set http.read_token_file"
            say("token of this start", f"{state / NAME} cannot be used ({why}); {once}")
    learn(token)
    return token


def page_link(url: str, token: str | None) -> str:
    """Give the address that opens the page; the part behind # stays in the browser."""
    return f"{url}/#token={token}" if token else f"{url}/"


def _given(config: Config, say: Say) -> str | None:
    """Read the token that a file or the environment holds; None when neither is named, "" for one of no use."""
    path, variable = config.http.read_token_file, config.http.read_token_env
    if path is not None:
        place = f"http.read_token_file {path}"
        try:
            token = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not ASCII"
            say("read token", f"{place} cannot be read ({why}); the one in {NAME} of the state directory is used")
            return ""
    else:
        place, token = f"${variable}", os.environ.get(variable, "").strip() if variable else ""
        if not token:
            return None
    learn(token)
    if len(token) < MIN_TOKEN:
        say("read token", f"{place} holds fewer than {MIN_TOKEN} characters; the one in {NAME} of the state directory "
            "is used")  # fmt: skip
        return ""
    return token


def _own(state: Path) -> str:
    """Read this user's token, made when missing and anew when others could have read it. Raises `OSError`."""
    path = state / NAME
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    for _ in range(2):
        try:
            return _private(path)
        except FileNotFoundError:
            _make(path)
    return _private(path)


def _private(path: Path) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="ascii", errors="replace") as file:
        found, token = os.fstat(file.fileno()), file.read(1024).strip()
    if found.st_uid != os.geteuid():
        raise SentinelError(f"it belongs to uid {found.st_uid}")
    if len(token) < MIN_TOKEN or stat.S_IMODE(found.st_mode) & 0o077:
        path.unlink()
        raise FileNotFoundError(path)
    return token


def _make(path: Path) -> None:
    """Write a new token whole or not at all; the first of several sidecars that start at once wins."""
    draft = path.with_name(f".{NAME}.{secrets.token_hex(8)}")  # containers that share it have the same pids
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(24) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


__all__ = ["NAME", "page_link", "read_token"]
