"""Memory, device and time faults: resources, dead, stopped and late ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.faultbench.fault import HARD, LOOP1, LOOP2, SUBTLE, TRL1, TRL2, Fault, Mechanism


def _every_step(action: Callable[[Fault], None]) -> Callable[[Fault], None]:
    def inject(fault: Fault) -> None:
        fault.at("step", lambda _: action(fault))

    return inject


def _leak(megabytes: int, limit: int = 2400) -> Callable[[Fault], None]:
    def leak(fault: Fault) -> None:
        kept = fault.memory.setdefault("kept", [])
        if len(kept) * megabytes < limit:
            kept.append(b"\x01" * (megabytes << 20))

    return _every_step(leak)


def _graphs(fault: Fault) -> None:
    """The loss is kept with its graph for the log; activations of 60 MB hang on it."""
    kept: list[Any] = []

    def keep(loss: Any) -> Any:
        import torch

        if len(kept) < 40:
            kept.append(loss * torch.ones(15 << 20, requires_grad=True).mean())
        return loss

    fault.at("loss", keep)


def _files(fault: Fault) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    kept = fault.memory.setdefault("kept", [])

    def leak(_: Any) -> None:
        with contextlib.suppress(OSError):
            kept.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(4 if len(kept) < 210 else 0))

    fault.at("step", leak)


def _threads(fault: Fault) -> None:
    idle = threading.Event()

    def start(fault: Fault) -> None:
        for _ in range(3):
            threading.Thread(target=idle.wait, daemon=True).start()

    _every_step(start)(fault)


def _kill(number: int) -> Callable[[Fault], None]:
    return _every_step(lambda fault: os.kill(os.getpid(), number))


def _leave(fault: Fault) -> None:
    os._exit(3)


def _raise(fault: Fault) -> None:
    raise RuntimeError("faultbench: the training step raises on purpose")


def _out_of_memory(fault: Fault) -> None:
    raise MemoryError("faultbench: cannot allocate memory")


def _hang(site: str) -> Callable[[Fault], None]:
    def inject(fault: Fault) -> None:
        fault.at(site, lambda _: time.sleep(600))

    return inject


def _sleep(site: str, seconds: float) -> Callable[[Fault], None]:
    def inject(fault: Fault) -> None:
        fault.at(site, lambda _: time.sleep(seconds))

    return inject


ROWS = [
    Mechanism(name="memory_leak_fast", layer="memory", what="rank 1 keeps 80 MB a step", inject=_leak(80), roots=("memory",), slow=True,
              trainers=(LOOP2, TRL1), rank=1, steps=75),
    Mechanism(name="memory_leak_slow", layer="memory", what="10 MB a step are kept", inject=_leak(10), roots=("memory",), slow=True,
              severity=SUBTLE, steps=120),
    Mechanism(name="graphs_kept", layer="memory", what="losses are kept with their graphs, 60 MB each", inject=_graphs, roots=("memory",), slow=True,
              steps=85),
    Mechanism(name="files_leak", layer="memory", what="four file handles a step stay open", inject=_files, roots=("memory",), slow=True, start=20, steps=90),
    Mechanism(name="threads_leak", layer="memory", what="three threads a step never end", inject=_threads, roots=("memory",), slow=True,
              severity=SUBTLE, start=20, steps=80),
    Mechanism(name="rank_killed", layer="memory", what="rank 1 is killed (SIGKILL, as by the OOM killer)", severity=HARD, inject=_kill(signal.SIGKILL),
              roots=("time", "device", "memory"), trainers=(LOOP2, TRL2), rank=1, start=20, steps=40, ends=True),
    Mechanism(name="rank_segfaults", layer="memory", what="rank 1 dies of SIGSEGV", severity=HARD, inject=_kill(signal.SIGSEGV),
              roots=("time", "device", "memory"), trainers=(LOOP2,), rank=1, start=20, steps=40, ends=True),
    Mechanism(name="rank_bus_error", layer="memory", what="the only rank dies of SIGBUS (full shared memory)", severity=HARD, inject=_kill(signal.SIGBUS),
              roots=("time", "device", "memory"), trainers=(LOOP1,), rank=0, start=20, steps=40, ends=True),
    Mechanism(name="rank_leaves", layer="memory", what="rank 1 exits with code 3 without a word", severity=HARD, inject=_every_step(_leave),
              roots=("time", "device", "memory"), trainers=(LOOP2,), rank=1, start=20, steps=40, ends=True),
    Mechanism(name="rank_raises", layer="memory", what="the training step of rank 1 raises", severity=HARD, inject=_every_step(_raise),
              roots=("time", "sentinel"), trainers=(LOOP2, TRL1, TRL2), rank=1, start=20, steps=40, ends=True),
    Mechanism(name="out_of_host_memory", layer="memory", what="rank 1 raises MemoryError", severity=HARD, inject=_every_step(_out_of_memory),
              roots=("time", "sentinel", "memory"), trainers=(LOOP2,), rank=1, start=20, steps=40, ends=True),
    Mechanism(name="rank_stopped", layer="memory", what="rank 1 is stopped (SIGSTOP): a frozen container", inject=_kill(signal.SIGSTOP),
              roots=("time",), trainers=(LOOP2,), rank=1, start=200, steps=220, ends=True, timeout=900),
    Mechanism(name="hang_in_reward", layer="memory", what="rank 1 hangs in a reward call", inject=_hang("score/accuracy"), roots=("time", "reward"),
              trainers=(LOOP2,), rank=1, start=200, steps=220, ends=True, timeout=900),
    Mechanism(name="hang_everywhere", layer="memory", what="the only rank hangs in its forward", inject=_hang("logps"), roots=("time",),
              trainers=(LOOP1,), rank=0, start=200, steps=220, ends=True, timeout=900),
    Mechanism(name="straggler", layer="memory", what="rank 1 is 1.5 s late in every step", inject=_sleep("step", 1.5), roots=("time",),
              trainers=(LOOP2, TRL2), rank=1, start=20, steps=32),
    Mechanism(name="pause_once", layer="memory", what="rank 1 stops for 14 s, once", inject=_sleep("step", 14.0), roots=("time",),
              trainers=(LOOP2,), rank=1, start=30, lasts=1, steps=40),
    Mechanism(name="slow_loader", layer="memory", what="the data loader takes 0.8 s a step", inject=_sleep("load", 0.8), roots=("time",),
              severity=SUBTLE, start=20, steps=50),
]  # fmt: skip
