"""Fail open: whatever the agent does inside the trainer runs through here.

An exception of the agent never reaches the trainer: it is reported once, counted, and the probe it came from is
off from then on. With `strict` it is raised instead, so that tests hear it. Also keeps the agent's own time.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
Report = Callable[[str, str, str], None]  # probe, one-line reason, short traceback


class Unusable(ValueError):
    """What the loop handed over cannot be used: its text says value, place and remedy. Switches nothing off."""


def say(text: str) -> None:
    """Write one line for the user to stderr; never raises (stderr may be closed)."""
    try:
        sys.stderr.write(f"grpo-sentinel: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


def short_traceback(error: BaseException, limit: int = 6) -> str:
    """Format the last `limit` frames of an exception, at most 1500 characters, the end of it kept."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-limit))[-1500:]


class Guard:
    """Runs probes by name. `seconds` is the self time so far; a nested call counts once.

    `off_processor_seconds` is the part of it that the thread was not on a processor, known while `by_processor` is set.
    """

    def __init__(self, *, strict: bool = False, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.off: dict[str, str] = {}
        self.errors = 0  # exceptions of ours
        self.left_out = 0  # calls and arguments that could not be used: the loop's, not ours
        self.seconds = 0.0
        self.off_processor_seconds = 0.0
        self.by_processor = False
        self.strict = strict
        self._report: Report | None = None
        self._depth = 0
        self._reported: set[str] = set()

    def on_failure(self, report: Report) -> None:
        """Tell `report` of every probe that is switched off."""
        self._report = report

    def run(self, probe: str, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result | None:
        """Call `function`; None when it raised or when its probe is off. Raises only if strict."""
        if probe in self.off:
            return None
        return self._call(probe, True, function, args, kwargs)

    def essential(self, part: str, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result | None:
        """Call `function` as `run` does, but never switch it off: control, halting and the step's record."""
        return self._call(part, False, function, args, kwargs)

    def _call(
        self, probe: str, switch_off: bool, function: Callable[..., Result], args: Any, kwargs: Any
    ) -> Result | None:
        started = self._clock()
        worked = time.thread_time() if self.by_processor else None
        self._depth += 1
        try:
            return function(*args, **kwargs)
        except Exception as error:  # the one place that keeps the agent's errors from the trainer
            if self.strict:
                raise
            self._fail(probe, error, switch_off)
            return None
        finally:
            self._depth -= 1
            if self._depth == 0:
                took = self._clock() - started
                self.seconds += took
                if worked is not None:
                    self.off_processor_seconds += max(0.0, took - (time.thread_time() - worked))

    def refuse(self, place: str, text: str) -> None:
        """Leave an argument out that cannot be used, count it, say so once per `place`. Raises only if strict."""
        if self.strict:
            raise Unusable(text)
        self._fail(place, Unusable(text), False)

    def charge(self, seconds: float) -> None:
        """Add self time that was spent outside of `run`."""
        self.seconds += seconds

    def exempt(self, seconds: float) -> None:
        """Take waiting for other ranks out of the self time."""
        self.seconds -= seconds

    def _fail(self, probe: str, error: Exception, switch_off: bool) -> None:
        unusable = isinstance(error, Unusable)
        self.left_out += unusable
        self.errors += not unusable
        switch_off = switch_off and not unusable
        once = f"{probe} (argument)" if unusable else probe
        if once in self._reported:
            return
        self._reported.add(once)
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        if switch_off:
            self.off[probe] = reason
        if unusable:
            say(f"{error} (training goes on)")
        else:
            what = "and is off on this rank" if switch_off else "on this rank"
            say(f"the {probe} probe failed {what}; training goes on ({reason})")
        if self._report is not None:
            try:
                self._report(probe, reason, short_traceback(error))
            except Exception:  # noqa: BLE001 - a broken ring must not turn a lost probe into a lost run
                self.errors += 1
