"""Start the demo's training run, with grpo-sentinel around it or without, and follow its output."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEP_LINE = re.compile(r"^\{'loss': '([^']+)', 'grad_norm': '([^']+)'")
ERROR_LINE = re.compile(r"^(?:\[rank\d\]: ?)?([A-Za-z_.]*(?:Error|Exception): .+)$")
TOLD = ("grpo-sentinel", "demo:")  # lines of the log that are shown as they come
RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One finished training run."""

    output_dir: Path
    log: Path
    exit_code: int
    seconds: float
    steps: int  # optimizer steps that the trainer logged
    error: str  # last exception in its output, "" when there was none


def command(output_dir: Path, assets: Path, steps: int) -> list[str]:
    """Spell out what a user would type: torchrun with two processes on this machine."""
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc_per_node", str(RANKS)]
    return [*torchrun, str(HERE / "train.py"), "--output-dir", str(output_dir), "--assets", str(assets),
            "--steps", str(steps)]  # fmt: skip


def watched(plain: list[str], config: Path, *, sidecar: bool = True) -> list[str]:
    """Put the launcher in front: the whole of the zero-code attachment."""
    own = [] if sidecar else ["--no-daemon"]
    return [sentinel(), "launch", "--config", str(config), *own, "--", *plain]


def sentinel() -> str:
    """Name the installed command."""
    return str(Path(sys.executable).with_name("grpo-sentinel"))


@contextlib.contextmanager
def sidecar_of_its_own(config: Path, run: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the sidecar apart from the launcher, so that it can outlive the run; ended by pid on leaving."""
    with (config.parent / "sidecar.log").open("wb") as log:
        argv = [sentinel(), "run", "--config", str(config), "--run-id", run]
        process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def train(
    argv: list[str], output_dir: Path, environment: Mapping[str, str], *, timeout_s: float,
    on_step: Callable[[int, str], None], on_line: Callable[[str], None],
) -> Run:  # fmt: skip
    """Run `argv` to its end; its output goes to a log beside `output_dir`, steps and told lines to the callbacks.

    A run that takes longer than `timeout_s` is ended (SIGTERM, then SIGKILL to its process group) and its exit code
    is negative.
    """
    log = output_dir.parent / "train.log"
    started = time.monotonic()
    process = subprocess.Popen(
        argv, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", bufsize=1, start_new_session=True,
    )  # fmt: skip
    overdue = threading.Timer(timeout_s, _end, (process,))
    overdue.start()
    steps, error = 0, ""
    try:
        with log.open("w", buffering=1) as file:
            for line in process.stdout or ():
                file.write(line)
                if match := STEP_LINE.match(line):
                    steps += 1
                    on_step(steps, f"step {steps}, gradient norm {match[2]}")
                elif match := ERROR_LINE.match(line.strip()):
                    error = match[1]
                elif line.startswith(TOLD):
                    on_line(line.rstrip())
        exit_code = process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        overdue.cancel()
    seconds = time.monotonic() - started
    return Run(output_dir=output_dir, log=log, exit_code=exit_code, seconds=seconds, steps=steps, error=error)


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                continue
