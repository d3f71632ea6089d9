"""What the demo shows: coloured with one moving progress line on a terminal, plain lines when piped."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from typing import TextIO

COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
WIDTH = 118


class Screen:
    """Print titles, facts, verdicts and progress; progress overwrites itself only on a terminal."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self.stream = stream
        self.terminal = stream.isatty()
        self.coloured = self.terminal and "NO_COLOR" not in os.environ
        self._moving = False
        self._shown = 0.0

    def paint(self, text: str, *colours: str) -> str:
        """Wrap `text` in colours, or return it as it is when nobody would see them."""
        codes = ";".join(COLOURS[name] for name in colours)
        return f"\033[{codes}m{text}\033[0m" if self.coloured and codes else text

    def line(self, text: str = "", *colours: str) -> None:
        """Print one line of its own."""
        self._stop_moving()
        print(self.paint(text, *colours), file=self.stream, flush=True)

    def title(self, text: str) -> None:
        """Print a heading with space above it."""
        self.line()
        self.line(text, "bold", "cyan")

    def fact(self, name: str, text: str) -> None:
        """Print `name` and its text, folded under itself."""
        first, *more = textwrap.wrap(text, WIDTH - 17, break_long_words=False, break_on_hyphens=False) or ["-"]
        self.line(f"  {self.paint(f'{name:<13}', 'dim')}  {first}")
        for part in more:
            self.line(f"{'':17}{part}")

    def verdict(self, text: str, good: bool) -> None:
        """Print something that was checked, with its outcome in colour and in words."""
        mark = self.paint("ok  ", "green", "bold") if good else self.paint("FAIL", "red", "bold")
        first, *more = textwrap.wrap(text, WIDTH - 8, break_long_words=False, break_on_hyphens=False)
        self.line(f"  {mark}  {first}")
        for part in more:
            self.line(f"        {part}")

    def progress(self, text: str, share: float) -> None:
        """Show how far a part has come (`share` from 0 to 1): a bar on a terminal, now and then a line elsewhere."""
        share = min(max(share, 0.0), 1.0)
        if self.terminal:
            bar = ("#" * round(share * 24)).ljust(24, ".")
            moving = f"\r\033[K  [{self.paint(bar, 'cyan')}] {share:4.0%}  {text[:80]}"
            print(moving, end="", file=self.stream, flush=True)
            self._moving = True
        elif share >= 1.0 or time.monotonic() - self._shown >= 5.0:
            self._shown = time.monotonic()
            self.line(f"  {share:4.0%}  {text}")

    def _stop_moving(self) -> None:
        if self._moving:
            print(file=self.stream)
            self._moving = False
