"""SIGTERM does to a watched rank what it does to any process, and leaves a note where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import environment

from grpo_sentinel.protocol import RankReader, run_dir
from grpo_sentinel.protocol.ended import explain, mark_path
from grpo_sentinel.records import RankIdentity

_ATTACH = """
import ctypes, os, signal, sys, time
import torch
import grpo_sentinel
net = torch.nn.Linear(2, 2)
{before}
agent = grpo_sentinel.attach(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
ready, told = os.pipe()
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_DFL) if {own} else None
    os.write(told, b"x")
    while True:
        time.sleep(1)
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status), flush=True)
{then}
"""


def _started(folder: Path, before: str, then: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(_ATTACH.format(before=before, then=then, own=bool(before)))
    process = subprocess.Popen(
        [sys.executable, str(script)], env=environment(folder), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "child -15\n", "a worker of the rank dies of its own SIGTERM as ever"
        assert mark_path(_rings(folder), 0).read_text() == "", "and that is not the rank's end"
    except BaseException:
        process.kill()
        process.wait(10)
        raise
    return process


def _rings(folder: Path) -> Path:
    return run_dir(folder / "rings", "run")


@pytest.mark.torch
def test_a_rank_that_holds_the_interpreter_dies_of_sigterm_at_once_and_says_where_it_was(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    process = _started(tmp_path, "", "print('in C', flush=True); ctypes.PyDLL(None).sleep(100)")
    assert process.stdout is not None
    assert process.stdout.readline() == "in C\n"
    process.terminate()
    try:
        assert process.wait(20) == -signal.SIGTERM
    finally:
        process.kill()
    assert "script.py" in mark_path(_rings(tmp_path), 0).read_text()
    reader = RankReader(_rings(tmp_path) / "rank-00000.ring")
    note = explain(
        _rings(tmp_path), reader.identity, lost_ns=time.time_ns(), heartbeat_ns=reader.heartbeat().updated_wall_ns,
        waiting=False,
    )  # fmt: skip
    reader.close()
    assert note is not None
    assert note.words(3) == "ended by signal 15 sent to the rank at step 3"


@pytest.mark.torch
def test_the_trainers_own_handler_is_still_called(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = "def own(*_):\n    print('mine', flush=True)\n    sys.exit(7)\nsignal.signal(signal.SIGTERM, own)"
    process = _started(tmp_path, before, "print('waiting', flush=True)\nwhile True:\n    time.sleep(0.1)")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.terminate()
    try:
        assert process.wait(20) == 7
        assert process.stdout.read() == "mine\n"
    finally:
        process.kill()


def _identity(rank: int) -> RankIdentity:
    return RankIdentity(
        run_id="run", rank=rank, local_rank=rank, world_size=2, host="h", pid=100 + rank, pid_start_ticks=1,
        pid_namespace=2, boot_id="b", created_wall_ns=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ages_s", "explained"),
    [
        ((0.0, 0.01), [True, True]),
        ((0.0, 0.4), [False, True]),
        ((0.0, None), [False, False]),
        ((None, None), [False, False]),
    ],
)
def test_ranks_that_are_told_together_were_ended_and_one_that_was_picked_is_dead(
    tmp_path: Path, ages_s: tuple[float | None, ...], explained: list[bool]
) -> None:
    began = time.time_ns()
    for rank, age in enumerate(ages_s):
        path = mark_path(tmp_path, rank)
        path.write_text("" if age is None else "Current thread")
        when = began + round((age or 0.0) * 1e9)
        os.utime(path, ns=(when, when))
    found = [
        explain(tmp_path, _identity(rank), lost_ns=began + 10**9, heartbeat_ns=began, waiting=False) for rank in (0, 1)
    ]
    assert [note is not None for note in found] == explained
