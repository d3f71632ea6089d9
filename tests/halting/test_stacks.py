"""Stacks of real processes: by py-spy where it is, by the rank's own faulthandler, and never at a rank's expense."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from run_support import Started, identity

from grpo_sentinel.halting.processes import is_running, mark_of, mark_of_rank, send
from grpo_sentinel.incidents import stacks
from grpo_sentinel.protocol.identity import pid_namespace, start_ticks
from grpo_sentinel.records import RankIdentity

_WAITS = """
import sys, threading
def a_function_that_waits():
    print("up", flush=True)
    threading.Event().wait()
{prepare}
a_function_that_waits()
"""
_REGISTER = (
    "import faulthandler, signal; faulthandler.register(signal.SIGUSR2, file=open(sys.argv[1], 'a'), all_threads=True)"
)


def rank_of(pid: int) -> RankIdentity:
    return identity(0, pid=pid, pid_start_ticks=start_ticks(pid), pid_namespace=pid_namespace())


def sender(identity: RankIdentity, number: signal.Signals | None) -> str:
    return send(mark_of_rank(identity), number)


@pytest.fixture
def waiting(started: Started, tmp_path: Path) -> Callable[..., RankIdentity]:
    def start(*, registers: bool) -> RankIdentity:
        code = _WAITS.format(prepare=_REGISTER if registers else "")
        process = started.python("-c", code, tmp_path / "rank-00000.stacks")
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "up"
        return rank_of(process.pid)

    return start


def test_a_rank_tells_its_own_stack_by_signal(
    waiting: Callable[..., RankIdentity], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    rank = waiting(registers=True)
    for number in (1, 2):  # the second dump is read from where the first ended
        path = stacks.write_stacks([rank], tmp_path, tmp_path / f"{number}.txt", "it hangs", sender)
        text = path.read_text()
        assert "it hangs" in text
        assert text.count("a_function_that_waits") == 1
    assert is_running(mark_of_rank(rank))


def test_a_rank_without_a_handler_is_not_killed_by_the_question(
    waiting: Callable[..., RankIdentity], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    rank = waiting(registers=False)
    text = stacks.write_stacks([rank], tmp_path, tmp_path / "s.txt", "why", sender).read_text()
    assert "no handler for SIGUSR2" in text
    assert "pip install" in text
    assert is_running(mark_of_rank(rank))


def test_a_dead_rank_is_named_as_gone(waiting: Callable[..., RankIdentity], tmp_path: Path) -> None:
    gone = identity(3, pid=mark_of(1).pid + 2**21, pid_namespace=pid_namespace())  # type: ignore[union-attr]
    text = stacks.write_stacks([gone], tmp_path, tmp_path / "s.txt", "why", sender).read_text()
    assert "rank 3" in text
    assert "gone" in text


def test_py_spy_is_asked_first_and_its_failure_told(
    waiting: Callable[..., RankIdentity], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint('Thread', sys.argv[1:])\nsys.exit(0)\n")
    program.chmod(0o755)
    monkeypatch.setattr(stacks, "find_py_spy", lambda: str(program))
    rank = waiting(registers=False)
    assert f"'--pid', '{rank.pid}'" in stacks.write_stacks([rank], tmp_path, tmp_path / "s.txt", "", sender).read_text()
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('Permission Denied: try sudo')\n")
    assert (
        "py-spy: Permission Denied" in stacks.write_stacks([rank], tmp_path, tmp_path / "s.txt", "", sender).read_text()
    )
