"""Start real processes, wait for what they do with a limit, end them by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from grpo_sentinel.halting.processes import ProcessMark, mark_of, send
from grpo_sentinel.protocol import RankReader, list_segments, run_dir
from grpo_sentinel.records import (
    Ack,
    Action,
    Finding,
    FindingState,
    HaltState,
    Heartbeat,
    Liveness,
    Phase,
    RankIdentity,
    Severity,
)  # fmt: skip
from grpo_sentinel.views import RankStatus

HERE = Path(__file__).parent
T = TypeVar("T")


def until(look: Callable[[], T], seconds: float = 20.0, what: str = "") -> T:
    """Look again and again until it gives something true; fails after `seconds`."""
    limit = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > limit:
            raise AssertionError(f"not within {seconds} s: {what or look}")
        time.sleep(0.02)


class Started:
    """Processes of one test; all of them, and all that descends from them, are ended with it."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[str]] = []
        self._others: list[ProcessMark] = []

    def also(self, pids: list[int]) -> None:
        """End these processes too, which something started here has started."""
        self._others += [mark for mark in map(mark_of, pids) if mark is not None]

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for mark in self._others:
            send(mark, signal.SIGKILL)
        for process in self._all:
            if process.poll() is None:
                _kill_tree(process.pid)
            process.wait(10)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def python(
        self, *arguments: object, env: dict[str, str] | None = None, stderr: object = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start a Python program of its own session, with pipes."""
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)], env={**os.environ, **(env or {})}, text=True, errors="replace",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
        )  # fmt: skip
        self._all.append(process)
        return process

    def trainer(self, run_id: str, *arguments: object, **env: str) -> subprocess.Popen[str]:
        """Start one fake rank and wait until its ring is there."""
        process = self.python(HERE / "fake_trainer.py", *arguments, env={"GRPO_SENTINEL_RUN_ID": run_id, **env})
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready", process.stderr and process.stderr.read()
        return process

    def cli(self, *arguments: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start the command line."""
        return self.python("-m", "grpo_sentinel.cli", *arguments, env=env)


def _kill_tree(pid: int) -> None:
    """Kill a process and what it has started, also what has a session of its own, as a launcher's command has."""
    try:
        root = psutil.Process(pid)
        family = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def cli(
    *arguments: object, timeout: float = 60.0, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", "grpo_sentinel.cli", *map(str, arguments)], env={**os.environ, **(env or {})},
        capture_output=True, text=True, errors="replace", timeout=timeout, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def step(process: subprocess.Popen[str]) -> None:
    """Let a `--stdin` trainer make one step and wait for it."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline().startswith("step"), process.stderr and process.stderr.read()


def directory_of(run_id: str) -> Path:
    return run_dir(Path(os.environ["GRPO_SENTINEL_DIR"]), run_id)


def last_step(run_id: str) -> int:
    """Newest step in any ring of a run."""
    newest = 0
    for path in list_segments(directory_of(run_id)):
        reader = RankReader(path)
        newest = max([newest, *(record.step for record in reader.poll(None).records)])
        reader.close()
    return newest


def identity(rank: int = 0, **changes: object) -> RankIdentity:
    given: dict[str, object] = {
        "run_id": "run", "rank": rank, "local_rank": rank, "world_size": 2, "host": "node", "pid": 2_000_000 + rank,
        "pid_start_ticks": 1, "pid_namespace": 2, "boot_id": "b", "created_wall_ns": 1,
    }  # fmt: skip
    return RankIdentity(**{**given, **changes})  # type: ignore[arg-type]


def status(
    rank: int = 0, state: HaltState | None = None, *, request_id: int = 1, at: int = 10, wall_ns: int = 2 * 10**18,
    detail: str = "", liveness: Liveness = Liveness.ALIVE, who: RankIdentity | None = None,
) -> RankStatus:  # fmt: skip
    """A rank, with what it acknowledged."""
    ack = None
    if state is not None:
        ack = Ack(request_id=request_id, state=state, step=at, wall_ns=wall_ns, detail=detail)
    beat = Heartbeat(step=at, phase=Phase.FORWARD, phase_since_wall_ns=1, updated_wall_ns=1)
    return RankStatus(
        identity=who or identity(rank), heartbeat=beat, liveness=liveness, last_step=at, acknowledgement=ack
    )


def finding(
    rule: str = "gradient_nonfinite", action: Action = Action.CHECKPOINT_AND_HALT, *, onset: int = 5, root_id: str = "",
    severity: Severity = Severity.CRITICAL, state: FindingState = FindingState.FIRING,
) -> Finding:  # fmt: skip
    return Finding(
        finding_id=f"{rule}:0:{onset}", rule=rule, layer="gradient", severity=severity, state=state, action=action,
        run_id="run", step=onset + 1, onset_step=onset, ranks=(0,), message=f"{rule} is bad", wall_ns=1, root_id=root_id,
    )  # fmt: skip
