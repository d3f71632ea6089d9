"""Single keys from a terminal, without echo and without waiting longer than asked; the terminal is always put back."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from types import TracebackType

_ESCAPES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down",
    b"\x1b[5~": "pageup", b"\x1b[6~": "pagedown",
}  # fmt: skip
_PLAIN = {b"\t": "tab", b"\x03": "ctrl-c", b"\x04": "eof", b"\x1b": "escape", b"\r": "enter", b"\n": "enter"}
_LAST_OF_ESCAPE_SECONDS = 0.05  # the bytes of one key come together, also over ssh


class Keyboard:
    """Reads keys while it is open. Raises `OSError` when standard input is no terminal."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._pending = b""

    def __enter__(self) -> Keyboard:
        if not os.isatty(self._fd):
            raise OSError("standard input is no terminal")
        self._before = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def key(self, seconds: float) -> str | None:
        """Give the next key, or None when none was pressed within `seconds`."""
        if not self._pending and not self._more(seconds):
            return None
        while self._pending in (b"\x1b", b"\x1b[", b"\x1bO", b"\x1b[5", b"\x1b[6"):
            if not self._more(_LAST_OF_ESCAPE_SECONDS):
                break
        for code, name in _ESCAPES.items():
            if self._pending.startswith(code):
                self._pending = self._pending[len(code) :]
                return name
        first, self._pending = self._pending[:1], self._pending[1:]
        return _PLAIN.get(first, first.decode("ascii", "replace"))

    def _more(self, seconds: float) -> bool:
        if not select.select([self._fd], [], [], max(0.0, seconds))[0]:
            return False
        read = os.read(self._fd, 256)
        self._pending += read or b"\x04"  # a terminal that is gone says end of file
        return True
