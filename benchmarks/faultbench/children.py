"""Ranks of a run, forked from one process that has imported everything: no start-up to pay for.

The parent never runs a tensor operation and has no threads of its own, so a forked rank is as a fresh process with its
imports done. Its environment is what torchrun gives: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path


@dataclass
class Children:
    """The processes of one run."""

    folder: Path
    pids: dict[int, int] = field(default_factory=dict)  # rank -> pid, of those still running
    codes: dict[int, int] = field(default_factory=dict)  # rank -> exit code, negative: signal
    started: float = field(default_factory=time.monotonic)
    first_end: float = 0.0

    def poll(self) -> bool:
        """Collect ranks that have ended; tells whether all have."""
        for rank, pid in list(self.pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self.pids[rank]
                self.codes[rank] = os.waitstatus_to_exitcode(status)
                self.first_end = self.first_end or time.monotonic()
        return not self.pids

    def end(self) -> None:
        """Kill what still runs, by pid."""
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while not self.poll():
            time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(folder: Path, world: int, environment: dict[str, str], work: Callable[[], None]) -> Children:
    """Fork the ranks of a run; each runs `work` and ends with 0, or with 1 and a traceback in its log."""
    port = str(free_port())
    children = Children(folder)
    sys.stdout.flush()
    sys.stderr.flush()
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            _be_a_rank(rank, world, port, folder, environment, work)
        children.pids[rank] = pid
    return children


def _be_a_rank(
    rank: int, world: int, port: str, folder: Path, environment: dict[str, str], work: Callable[[], None]
) -> None:
    code = 1
    try:
        os.setsid()  # else the kernel wakes a rank that is stopped on purpose when the shell above has ended
        log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        if world > 1:
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=port
            )
        os.environ.update(environment)
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        if world > 1:
            dist.init_process_group("gloo", timeout=timedelta(seconds=300))
        work()
        if world > 1:
            dist.barrier()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - a rank's last words
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
