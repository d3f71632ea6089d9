"""Checks of a user's code in a process of its own: whatever ends that process, this one has a report.

A reward may call `os._exit`, crash in native code, be killed for want of memory, or never give the interpreter back, as
a regular expression that backtracks for hours. A model in a directory runs no such code and is checked right here.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.gradients import GradientOptions, check_gradients
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.policy import PolicyOptions, check_policy
from grpo_sentinel.preflight.report import CheckReport, Fault, gravest_first
from grpo_sentinel.preflight.reward import RewardOptions, check_reward

_GRACE_SECONDS = 2.0  # beyond its own deadline before a call is taken for one that never comes back
_LEAST_SECONDS = 5.0
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from grpo_sentinel.preflight.apart_child import main; main()"
)
_ENDS = ("raise an exception where it gives up: os._exit takes the whole rank with it; a signal comes from native code "
         "that it calls, or, as SIGKILL, for want of memory")  # fmt: skip


def reward_apart(target: str, data: Sequence[str], options: RewardOptions) -> CheckReport:
    """`check_reward`, in a process of its own unless the target is a directory. Raises `SentinelError`."""
    if not _runs_code(target):
        return check_reward(target, data, options)
    began = time.monotonic()
    request = {"check": "reward", "target": target, "data": list(data), "options": asdict(options)}
    ended = _Child(request).result()
    if isinstance(ended, CheckReport):
        return ended
    soon = time.monotonic() - began < options.timeout_seconds / 3
    if ended.count > 1 and not ended.hung and soon and _again(tuple(data)):
        again = _Child({**request, "careful": True}).result()  # the same once more, input by input: which one is it?
        if isinstance(again, CheckReport):
            ended = replace(ended, together=True)
        elif not again.hung:
            ended = replace(ended, place=again.place, count=again.count, how=again.how)
    return _answered(ended, target, time.monotonic() - began)


def policy_apart(target: str, options: PolicyOptions) -> CheckReport:
    """`check_policy`, apart where it runs a function; without that reward where it ends the process."""
    if not _runs_code(target) and not _runs_code(options.reward):
        return check_policy(target, options)
    began = time.monotonic()
    ended = _Child({"check": "policy", "target": target, "options": asdict(options)}).result()
    if isinstance(ended, CheckReport):
        return ended
    rest = replace(options, reward="", data=_again(options.data), timeout_seconds=_left(options.timeout_seconds, began))
    return _with(policy_apart(target, rest), _fault(ended, options.reward))


def gradients_apart(target: str, options: GradientOptions) -> CheckReport:
    """`check_gradients`, apart where it runs a function; without that reward where it ends the process."""
    if not _runs_code(target) and not _runs_code(options.reward):
        return check_gradients(target, options)
    began = time.monotonic()
    ended = _Child({"check": "gradients", "target": target, "options": asdict(options)}).result()
    if isinstance(ended, CheckReport):
        return ended
    rest = replace(options, reward="", data=_again(options.data), timeout_seconds=_left(options.timeout_seconds, began))
    return _with(gradients_apart(target, rest), _fault(ended, options.reward))


def _again(data: tuple[str, ...]) -> tuple[str, ...]:
    """What can be read a second time: no standard input, no process substitution."""
    return data if all(Path(one).is_file() for one in data) else ()


def _left(seconds: float, began: float) -> float:
    return max(_LEAST_SECONDS, seconds - (time.monotonic() - began))


def _runs_code(target: str) -> bool:
    return bool(target) and os.name == "posix" and not Path(target).expanduser().is_dir()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """A process that ended, or had to be ended, while it scored `count` inputs, the first of them at `place`."""

    how: str
    place: str
    count: int
    hung: bool = False
    together: bool = False  # each of them by itself does not end it
    known: dict[str, Any] = field(default_factory=dict)  # the report so far
    left: tuple[str, ...] = ()  # what was not tried


class _Child:
    """One process with one request: what it told so far."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._what = f"check {request['check']} of {request['target']}"
        reader, writer = os.pipe()
        self._reader = reader
        content = json.dumps({"careful": False, **request, "descriptor": writer, "parent": os.getpid()})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, content, json.dumps([str(Path(one).absolute()) if one else one
                                                                    for one in sys.path])],
                pass_fds=(writer, *_descriptors(request)), stdout=_stderr(),
            )  # fmt: skip
        finally:
            os.close(writer)
        self._doing: dict[str, Any] = {}
        self._until = float("inf")
        self._known: dict[str, Any] = {}

    def result(self) -> CheckReport | _Ended:
        """The report, or how it ended without one. Raises `SentinelError` as the check does."""
        unread = b""
        try:
            while time.monotonic() < self._until:
                over = self._process.poll() is not None
                if not select.select([self._reader], [], [], 0.1)[0]:
                    if over:  # processes that it started may keep the pipe open
                        return self._ended()
                    continue
                chunk = os.read(self._reader, 1 << 16)
                if not chunk:
                    return self._ended()
                *lines, unread = (unread + chunk).split(b"\n")
                for told in map(json.loads, lines):
                    if told["kind"] == "report":
                        return report_of(told["report"])
                    if told["kind"] == "refused":
                        raise SentinelError(told["message"])
                    self._note(told)
            return self._ended(hung=True)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._reader)

    def _note(self, told: dict[str, Any]) -> None:
        if told["kind"] == "known":
            self._known = told
            return
        self._doing = told if told["kind"] == "doing" else {}
        self._until = time.monotonic() + told["seconds"] + _GRACE_SECONDS if "seconds" in self._doing else float("inf")

    def _ended(self, *, hung: bool = False) -> _Ended:
        how = "" if hung else _how(self._process.wait())
        if self._doing.get("what") == "load":
            raise SentinelError(f"loading {self._doing['place']} ended the process ({how}): see what the module does "
                                "when it is imported")  # fmt: skip
        if self._doing.get("what") != "score":
            raise SentinelError(f"{self._what} ended without a report ({how}); where the kernel killed it for want of "
                                "memory, dmesg says so")  # fmt: skip
        return _Ended(how=how, place=self._doing["place"], count=self._doing["count"], hung=hung,
                      known=self._known.get("report", {}), left=tuple(self._known.get("left", ())))  # fmt: skip


def _descriptors(request: Mapping[str, Any]) -> list[int]:
    """Those that a shell put in the place of files: `--data <(zcat a.gz)` is /dev/fd/63."""
    named = [*request.get("data", ()), *request["options"].get("data", ())]
    return [int(found[1]) for one in named if (found := _DESCRIPTOR.fullmatch(str(one)))]


def _how(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _stderr() -> int:
    """Where what a reward prints goes."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


def _fault(ended: _Ended, target: str) -> Fault:
    more = f" and {ended.count - 1} more" if ended.count > 1 else ""
    more += " at once, each by itself does no harm" if ended.together else ""
    if ended.hung:
        return Fault(level=Level.CANNOT_TELL, code="timeout", where=target,
                     message=f"it did not come back in time, and could not be interrupted, while it scored "
                             f"{ended.place}{more}; the rest was not tried",
                     remedy="see what it computes: a regular expression that backtracks does so")  # fmt: skip
    return Fault(level=Level.BROKEN, code="ends-process", where=target, remedy=_ENDS,
                 message=f"it ended the process ({ended.how}) while it scored {ended.place}{more}")  # fmt: skip


def _answered(ended: _Ended, target: str, seconds: float) -> CheckReport:
    """The report so far, with the end and what was not tried for it."""
    so_far = report_of(ended.known) if ended.known else CheckReport(kind="reward", subject=target, looked_at=())
    rest = f"{', '.join(ended.left) or 'everything else'}: the process of the check ended before"
    return replace(_with(so_far, _fault(ended, target)), seconds=seconds,
                   not_seen=(*so_far.not_seen, rest))  # fmt: skip


def _with(report: CheckReport, fault: Fault) -> CheckReport:
    return replace(report, faults=gravest_first([fault, *report.faults]))


def report_of(body: Mapping[str, Any]) -> CheckReport:
    """The report that was told as JSON."""
    faults = tuple(
        Fault(**{**one, "level": Level(one["level"]), "examples": tuple(one["examples"])}) for one in body["faults"]
    )
    return CheckReport(
        kind=body["schema"].removeprefix("grpo-sentinel/").removesuffix("-check"), subject=body["subject"],
        looked_at=tuple(body["looked_at"]), not_seen=tuple(body["not_seen"]), faults=faults,
        notes=tuple(body["notes"]), facts=body["facts"], seconds=body["seconds"],
    )  # fmt: skip


__all__ = ["gradients_apart", "policy_apart", "report_of", "reward_apart"]
