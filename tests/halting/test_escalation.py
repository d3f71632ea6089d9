"""A missed deadline: stacks, then SIGTERM to the launcher and to nobody else, SIGKILL only if configured."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from run_support import HERE, Started, identity, status, until

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import HaltingConfig
from grpo_sentinel.halting import HaltController, NodeLauncher
from grpo_sentinel.halting.launcher import launcher_above
from grpo_sentinel.halting.processes import ProcessMark, is_running, mark_of, parse_stat, send
from grpo_sentinel.protocol.identity import pid_namespace, start_ticks
from grpo_sentinel.records import Action, HaltState, RankIdentity
from grpo_sentinel.views import RankStatus


def real(pid: int, rank: int) -> RankIdentity:
    return identity(rank, pid=pid, pid_start_ticks=start_ticks(pid), pid_namespace=pid_namespace())


def two_stuck_ranks(started: Started) -> tuple[object, dict[int, RankStatus], list[int]]:
    launcher = started.python(HERE / "fake_launcher.py", 2, "--deaf", env={"GRPO_SENTINEL_RUN_ID": "run"})
    pids = [int(pid) for pid in launcher.stdout.readline().split()]  # type: ignore[union-attr]
    started.also(pids)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return launcher, {rank: status(rank, who=real(pid, rank)) for rank, pid in enumerate(pids)}, pids


def gone(pid: int) -> bool:
    return mark_of(pid) is None


def test_a_stuck_rank_leads_to_stacks_then_sigterm_to_the_launcher_only(tmp_path: Path, started: Started) -> None:
    launcher, ranks, pids = two_stuck_ranks(started)
    clock, asked = ManualClock(), []

    def stacks(identities: object, why: str) -> str:
        asked.append((list(identities), why))  # type: ignore[call-overload]
        return "/s/stacks.txt"

    config = HaltingConfig(acknowledge_seconds=10, terminate_seconds=20)
    halting = HaltController(tmp_path, config, clock, NodeLauncher(), take_stacks=stacks)
    halting.request(Action.CHECKPOINT_AND_HALT, "")
    clock.advance(9.9)
    halting.poll(ranks)
    assert not asked
    clock.advance(0.2)
    assert "stacks in /s/stacks.txt" in halting.poll(ranks).detail
    assert [one.rank for one in asked[0][0]] == [0, 1]
    clock.advance(19.9)
    halting.poll(ranks)
    assert not gone(launcher.pid)  # type: ignore[attr-defined]
    clock.advance(0.2)
    found = halting.poll(ranks)
    assert f"SIGTERM sent to the launcher, pid {launcher.pid}" in found.detail  # type: ignore[attr-defined]
    assert launcher.stdout.readline().strip() == "launcher got SIGTERM"  # type: ignore[attr-defined]
    assert launcher.wait(10) == 1  # type: ignore[attr-defined]
    clock.advance(61)
    assert halting.poll(ranks).state is HaltState.FAILED
    assert len(asked) == 1
    until(lambda: all(map(gone, pids)))


def test_sigkill_comes_only_if_configured_and_takes_the_ranks_along(tmp_path: Path, started: Started) -> None:
    launcher, ranks, pids = two_stuck_ranks(started)
    os.kill(launcher.pid, signal.SIGSTOP)  # type: ignore[attr-defined] - it does not even hear SIGTERM
    clock = ManualClock()
    config = HaltingConfig(acknowledge_seconds=1, terminate_seconds=1, kill_after_seconds=5)
    halting = HaltController(tmp_path, config, clock, NodeLauncher())
    halting.request(Action.HALT_NOW, "")
    for _ in range(3):
        clock.advance(2)
        halting.poll(ranks)
    assert not any(map(gone, pids))
    clock.advance(5)
    assert "SIGKILL sent to the launcher" in halting.poll(ranks).detail
    assert launcher.wait(10) == -signal.SIGKILL  # type: ignore[attr-defined]
    until(lambda: all(map(gone, pids)))


def test_a_sidecar_started_again_in_the_middle_goes_on_and_sends_no_second_sigterm(
    tmp_path: Path, started: Started
) -> None:
    launcher, ranks, pids = two_stuck_ranks(started)
    clock, asked = ManualClock(), []
    config = HaltingConfig(acknowledge_seconds=1, terminate_seconds=10)

    def sidecar() -> HaltController:
        return HaltController(
            tmp_path, config, clock, NodeLauncher(), take_stacks=lambda _, why: asked.append(why) or "x"
        )  # fmt: skip

    first = sidecar()
    first.request(Action.HALT_NOW, "")
    clock.advance(2)
    first.poll(ranks)
    clock.advance(9)
    second = sidecar()
    second.poll(ranks)
    assert not gone(launcher.pid)  # type: ignore[attr-defined] - one second is left
    clock.advance(2)
    assert "SIGTERM sent to the launcher" in second.poll(ranks).detail
    assert launcher.stdout.readline().strip() == "launcher got SIGTERM"  # type: ignore[attr-defined]
    assert asked == ["not voted on after 1 s"], "the stacks were taken before"
    clock.advance(11)
    third = sidecar().poll(ranks)
    assert third.detail.count("SIGTERM") == 1
    until(lambda: all(map(gone, pids)))


def test_a_late_checkpoint_alone_never_ends_the_run(tmp_path: Path, started: Started) -> None:
    launcher, ranks, _ = two_stuck_ranks(started)
    clock = ManualClock()
    config = HaltingConfig(acknowledge_seconds=1, terminate_seconds=1, kill_after_seconds=1)
    halting = HaltController(tmp_path, config, clock, NodeLauncher())
    halting.request(Action.CHECKPOINT, "")
    for _ in range(10):
        clock.advance(10)
        halting.poll(ranks)
    assert not gone(launcher.pid)  # type: ignore[attr-defined]
    assert "SIGTERM" not in halting.status.detail


def test_a_slow_checkpoint_has_its_own_deadline(tmp_path: Path) -> None:
    clock, asked = ManualClock(), []
    config = HaltingConfig(acknowledge_seconds=10, checkpoint_seconds=100)
    halting = HaltController(tmp_path, config, clock, take_stacks=lambda _, why: asked.append(why) or "x")
    halting.request(Action.CHECKPOINT_AND_HALT, "")
    voted = {0: status(0, HaltState.CHECKPOINTING, wall_ns=clock.wall_ns())}
    halting.poll(voted)
    clock.advance(99)
    halting.poll(voted)
    assert not asked
    clock.advance(2)
    halting.poll(voted)
    assert asked == ["the checkpoint is not finished after 100 s"]


def test_a_process_with_a_reused_pid_is_not_signalled(started: Started) -> None:
    victim = started.python("-c", "print('up', flush=True); import time; time.sleep(60)")
    assert victim.stdout is not None
    victim.stdout.readline()
    mark = mark_of(victim.pid)
    assert mark is not None
    older = ProcessMark(pid=mark.pid, start_ticks=mark.start_ticks - 1, pid_namespace=mark.pid_namespace)
    assert "another process" in send(older, signal.SIGKILL)
    foreign = ProcessMark(pid=mark.pid, start_ticks=mark.start_ticks, pid_namespace=mark.pid_namespace + 1)
    assert "another pid namespace" in send(foreign, signal.SIGKILL)
    assert is_running(mark)
    assert send(mark, signal.SIGKILL) == ""
    assert victim.wait(10) == -signal.SIGKILL
    assert "gone" in send(mark, signal.SIGKILL)


def test_another_users_process_and_the_first_process_are_not_signalled() -> None:
    first = mark_of(1)
    assert first is not None
    assert "never signalled" in send(first, signal.SIGTERM)


def test_a_lone_rank_without_a_launcher_is_its_own(started: Started) -> None:
    rank = started.python("-c", "print('up', flush=True); import time; time.sleep(60)")
    assert rank.stdout is not None
    rank.stdout.readline()
    found = launcher_above([real(rank.pid, 0)])
    assert found is not None
    assert found.pid == rank.pid


@pytest.mark.parametrize("command", ["python", "a b) (c", ") R 1 2"])
def test_the_commands_name_cannot_confuse_the_reading_of_stat(command: str) -> None:
    line = f"71 ({command}) S 7 71 71 0 -1 4194304 1 0 0 0 1 2 0 0 20 0 1 0 98765 1 1"
    assert parse_stat(line) == ("S", 7, 98765)
