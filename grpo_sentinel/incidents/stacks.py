"""Writes the stacks of ranks that do not answer: py-spy where it may look, else the rank's own faulthandler by signal.

    py-spy dump --pid P         sees a rank stuck inside a collective; needs ptrace permission
    SIGUSR2 to P                the agent's faulthandler appends to <run>/rank-00003.stacks; works without ptrace, also
                                while the main thread waits in C, but not while the process is stopped

The signal only goes to the very process that wrote the segment, and only if it has a handler: without one it would die.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_sentinel.incidents import collectives
from grpo_sentinel.records import RankIdentity
from grpo_sentinel.scrub import scrub

STACK_SIGNAL = signal.SIGUSR2
SendSignal = Callable[[RankIdentity, signal.Signals | None], str]
"""Sends a signal (None: none, only check) to exactly the process of an identity; gives "" or why not."""

_PY_SPY_SECONDS = 10.0
_DUMP_SECONDS = 2.0


def find_py_spy() -> str | None:
    """Find the py-spy program: beside this interpreter, else on PATH."""
    for directory in (sysconfig.get_path("scripts"), str(Path(sys.executable).parent)):
        found = shutil.which("py-spy", path=directory)
        if found:
            return found
    return shutil.which("py-spy")


def write_stacks(
    identities: Sequence[RankIdentity], directory: Path, target: Path, reason: str, send: SendSignal
) -> Path:
    """Write one text file with the stacks of all given ranks; a rank that gives none is named with the reason.

    May take several seconds per rank: call it from a thread of its own. Raises `OSError` when `target` cannot be
    written. Never leaves a rank killed or stopped.
    """
    py_spy = find_py_spy()
    parts = [f"stacks of {len(identities)} rank(s): {reason}\n"]
    before = collectives.asked(directory, [identity.rank for identity in identities])
    for identity in identities:
        parts.append(f"\n==== rank {identity.rank}, pid {identity.pid} on {identity.host}\n")
        parts.append(_stack_of(identity, directory, py_spy, send))
    parts.append(collectives.answers(directory, before))
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    partial.write_text("".join(parts), encoding="utf-8", errors="backslashreplace")
    partial.replace(target)
    return target


def _stack_of(identity: RankIdentity, directory: Path, py_spy: str | None, send: SendSignal) -> str:
    problem = send(identity, None)
    if problem:
        return f"not available: {problem}\n"
    notes = []
    if py_spy is not None:
        text, why = _by_py_spy(py_spy, identity.pid)
        if text:
            return scrub(text)  # it begins with the command line
        notes.append(f"py-spy: {why}")
    else:
        notes.append("py-spy is not installed (pip install py-spy)")
    text, why = _by_signal(identity, directory, send)
    return text or "not available: " + "; ".join([*notes, why]) + "\n"


def _by_py_spy(program: str, pid: int) -> tuple[str, str]:
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid)], capture_output=True, timeout=_PY_SPY_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "replace"), ""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return "", lines[0] if lines else f"exit code {done.returncode}"


def _by_signal(identity: RankIdentity, directory: Path, send: SendSignal) -> tuple[str, str]:
    """Ask the rank's faulthandler and read what it appended."""
    if not catches(identity.pid, STACK_SIGNAL):
        return "", f"the rank has no handler for {STACK_SIGNAL.name}"
    path = directory / f"rank-{identity.rank:05d}.stacks"
    before = _size(path)
    problem = send(identity, STACK_SIGNAL)
    if problem:
        return "", problem
    limit = time.monotonic() + _DUMP_SECONDS
    size = before
    while time.monotonic() < limit:
        time.sleep(0.05)
        grown = _size(path)
        if grown > before and grown == size:  # nothing came since the last look: the dump is whole
            break
        size = grown
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(before)
        text = file.read().decode("utf-8", "replace")
        if text:
            return text, ""
    return "", f"nothing was written within {_DUMP_SECONDS:g} s of {STACK_SIGNAL.name}; is the process stopped?"


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def catches(pid: int, number: signal.Signals) -> bool:
    """Tell whether a process has a handler for a signal, so that sending it does not kill the process."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
