"""When a bundle is written, what belongs together in one, and that it never costs the daemon anything."""

from __future__ import annotations

import itertools
import math
import os
import resource
import signal
from pathlib import Path

import pytest
import sentinel_batches as made
from incident_world import RUN, World

from grpo_sentinel.incidents.bundle import Bundle
from grpo_sentinel.incidents.model import State
from grpo_sentinel.records import Action, FindingState, HaltState, Liveness, Severity
from grpo_sentinel.views import HaltStatus


def finding(rule: str = "nan_gradient", onset: int = 12, **changes: object):
    return made.finding(
        rule, **{"finding_id": f"{rule}:1:{onset}", "onset_step": onset, "step": onset + 1, **changes}
    )  # fmt: skip


def resolved(one, wall_ns: int):
    from dataclasses import replace

    return replace(one, state=FindingState.RESOLVED, wall_ns=wall_ns)


def test_a_critical_finding_has_a_bundle_written_at_once(world: World) -> None:
    for _ in range(12):
        world.step()
    world.find(finding())
    assert world.work() == 1
    bundle = world.bundle()
    assert bundle.damage() == []
    assert bundle.about.state is State.OPEN
    assert (bundle.about.onset_step, bundle.about.root_id, bundle.about.node) == (12, "nan_gradient:1:12", "node-a")
    assert bundle.path.name == f"{RUN}-{bundle.about.incident_id}"
    assert [one.finding_id for one in bundle.findings()] == ["nan_gradient:1:12"]


def test_the_last_steps_of_every_rank_come_from_history_and_ring_each_once(world: World) -> None:
    for _ in range(20):
        world.step({"policy.loss": 1.0})
    world.writers[1].push({"policy.loss": math.nan, "memory.rss_bytes": math.inf}, step=21)  # nobody committed this
    world.find(finding(onset=15))
    world.work()
    records = list(world.bundle().records())
    by_rank = {rank: sorted({one.step for one in records if one.rank == rank}) for rank in (0, 1)}
    assert by_rank == {0: list(range(1, 21)), 1: list(range(1, 22))}
    last = next(one for one in records if one.step == 21)
    assert math.isnan(last.values["policy.loss"])
    assert last.values["memory.rss_bytes"] == math.inf


def test_only_the_steps_around_the_onset_and_the_end_are_kept(tmp_path: Path) -> None:
    world = World(tmp_path / "s", tmp_path / "r", keep_steps=5)
    for _ in range(60):
        world.step()
    world.find(finding(onset=20))
    world.work()
    steps = {one.step for one in world.bundle().records()}
    assert steps == {*range(15, 26), *range(55, 61)}
    world.close()


def test_a_warning_begins_nothing_but_is_told_when_something_grave_follows_from_it(world: World) -> None:
    root = finding("entropy_drift", 5, severity=Severity.WARNING, layer="policy")
    world.find(root)
    assert world.work() == 0
    world.find(finding(root_id=root.finding_id))
    world.work()
    assert world.bundle().about.root_id == root.finding_id
    assert [one.rule for one in world.bundle().findings()] == ["entropy_drift", "nan_gradient"]


def test_a_root_that_is_over_when_something_grave_follows_from_it_is_the_root_of_the_incident_too(world: World) -> None:
    root = finding("update_ratio_huge", 10, severity=Severity.WARNING, layer="optimizer")
    world.find(root)
    world.find(resolved(root, world.clock.wall_ns()))
    assert world.work() == 0
    world.find(finding(root_id=root.finding_id))
    world.work()
    assert world.bundle().about.root_id == root.finding_id
    assert [one.rule for one in world.bundle().findings()] == ["update_ratio_huge", "nan_gradient"]


def test_of_a_death_by_an_exception_the_title_names_the_exception(world: World) -> None:
    told = finding("trainer_exception", 12, layer="reward", message="an exception leaves the trainer: ValueError: x")
    world.find(told, finding("rank_dead", 11, layer="time", root_id=told.finding_id))
    world.work()
    assert world.bundle().about.title == told.message
    assert world.bundle().findings()[0].rule == "trainer_exception"


def test_a_storm_of_one_root_is_one_incident_and_few_writings(world: World) -> None:
    root = finding("reward_nan", 10, layer="reward")
    world.find(root)
    for number in range(300):
        world.find(finding(f"rule_{number}", 11, root_id=root.finding_id))
        world.clock.advance(0.01)
    assert world.work() <= 3
    world.clock.advance(3.0)
    world.find()
    world.work()
    assert len(world.bundle().findings()) == 301
    assert world.recorder.health()["opened_total"] == 1


def test_what_flaps_stays_one_incident(world: World) -> None:
    for onset in range(10, 60, 5):
        one = finding(onset=onset, wall_ns=world.clock.wall_ns())
        world.find(one)
        world.clock.advance(5.0)
        world.find(resolved(one, world.clock.wall_ns()))
        world.work()
    assert len(world.folders()) == 1


def test_two_incidents_become_one_when_their_common_root_is_found(world: World) -> None:
    from dataclasses import replace

    first, second = finding("a", 12), finding("b", 13)
    world.find(first)
    world.find(second)
    world.work()
    assert len(world.folders()) == 2
    root = finding("bad_sample", 11, layer="data")
    world.find(root, replace(first, root_id=root.finding_id), replace(second, root_id=root.finding_id))
    world.clock.advance(3.0)
    world.find()
    world.work()
    assert world.bundle().about.root_id == root.finding_id
    assert {one.rule for one in world.bundle().findings()} == {"a", "b", "bad_sample"}


def test_more_incidents_than_a_run_may_have_join_the_newest(tmp_path: Path) -> None:
    world = World(tmp_path / "s", tmp_path / "r", max_incidents=3)
    for number in range(10):
        world.find(finding(f"unrelated_{number}", 10 + number))
    world.work()
    assert len(world.folders()) == 3
    assert world.recorder.health()["joined_total"] == 7
    world.close()


def test_a_finding_that_asks_for_a_capture_begins_an_incident_whatever_its_severity(world: World) -> None:
    world.find(finding(severity=Severity.WARNING, action=Action.CAPTURE))
    world.work()
    assert len(world.folders()) == 1


def test_all_resolved_for_a_minute_closes_it_and_an_earlier_relapse_does_not(world: World) -> None:
    one = finding()
    world.find(one)
    world.work()
    world.find(resolved(one, world.clock.wall_ns() + 1))
    world.clock.advance(30.0)
    world.find()
    world.work()
    assert world.bundle().about.state is State.OPEN
    world.clock.advance(31.0)
    world.find()
    world.work()
    assert world.bundle().about.state is State.CLOSED
    assert world.bundle().findings()[0].state is FindingState.RESOLVED


def test_the_death_of_all_ranks_completes_it_from_the_ring(world: World) -> None:
    for _ in range(12):
        world.step()
    world.find(finding())
    world.work()
    world.step(stored=False)
    world.liveness = Liveness.DEAD
    world.find()
    world.clock.advance(2.5)
    world.recorder.tick()  # a dead run sends nothing that `update` would be called for
    world.work()
    bundle = world.bundle()
    assert (bundle.about.state, bundle.about.ended) == (State.CLOSED, "died (rank 0, 1)")
    assert max(one.step for one in bundle.records()) == 13
    assert "died (rank 0, 1)" in (bundle.path / "report.md").read_text()


def test_a_request_that_comes_of_it_and_what_was_kept_are_told(world: World) -> None:
    world.find(finding())
    world.work()
    world.clock.advance(3.0)
    world.store_event("checkpoint", {"path": "/out/checkpoint-10", "step": 10}, step=10)
    world.store_event("checkpoint", {"path": "/out/checkpoint-20", "step": 20}, step=20)
    halt = HaltStatus(
        request_id=1, state=HaltState.DONE, action=Action.CHECKPOINT_AND_HALT, requested_by="nan_gradient",
        detail="/out/checkpoint-20", pinned_checkpoint="/kept/checkpoint-10",
    )  # fmt: skip
    world.find(halt=halt)
    world.work()
    kept = world.bundle().source().run["checkpoints"]
    assert (kept["last_before_onset"], kept["pinned"]) == ("/out/checkpoint-10", "/kept/checkpoint-10")
    assert "checkpoint-and-halt by nan\\_gradient: done" in (world.bundle().path / "report.md").read_text()


def test_the_next_daemon_carries_an_open_bundle_on(world: World) -> None:
    one = finding()
    world.find(one)
    world.work()
    world.recorder.close()
    world.work()
    world.new_recorder()
    world.find(finding("policy_nan", 13, layer="policy", root_id=one.finding_id))
    world.work()
    assert [one.rule for one in world.bundle().findings()] == ["nan_gradient", "policy_nan"]
    world.recorder.complete(RUN)
    world.work()
    assert world.bundle().about.state is State.CLOSED
    world.new_recorder()
    world.find(finding("later", 40))
    world.work()
    assert len(world.folders()) == 2


def test_switched_off_it_does_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "s", tmp_path / "r", enabled=False)
    world.find(finding())
    assert world.work() == 0
    world.close()


def test_without_a_history_the_ring_alone_gives_the_steps(tmp_path: Path) -> None:
    world = World(tmp_path / "s", tmp_path / "r")
    for _ in range(5):
        world.step(stored=False)
    world.recorder._gatherer = type(world.recorder._gatherer)(
        state_dir=world.state, config=world.config, history=None, sentinel={}
    )
    world.find(finding(onset=3))
    world.work()
    assert {one.step for one in world.bundle().records()} == {1, 2, 3, 4, 5}
    assert "switched off" in world.bundle().manifest["missing"]["history"]
    world.close()


def test_a_disk_that_takes_nothing_costs_the_bundle_and_is_counted(world: World) -> None:
    world.recorder.root.write_text("in the way")
    world.find(finding())
    assert world.work() == 1
    assert world.recorder.health()["errors_total"] == 1
    assert "could not be written" in world.recorder.trouble
    world.recorder.root.unlink()
    world.clock.advance(3.0)
    world.find(finding("next", 14, root_id="nan_gradient:1:12"))
    world.work()
    assert world.recorder.trouble == ""
    assert world.bundle().damage() == []


def test_a_disk_that_is_full_in_the_middle_leaves_the_version_from_before(world: World) -> None:
    world.find(finding())
    world.work()
    before = world.bundle().manifest
    for _ in range(200):
        world.step({f"reward.func_mean[{index}]": index + 0.123456789 for index in range(40)})
    world.find(finding("next", 14, root_id="nan_gradient:1:12"))
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))
    try:
        world.work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert world.recorder.health()["errors_total"] == 1
    assert world.bundle().manifest == before
    assert world.bundle().damage() == []
    assert [path.name for path in world.recorder.root.iterdir()] == [world.bundle().path.name]


def test_the_budget_takes_the_oldest_closed_bundles_and_never_an_open_one(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(os.urandom(200_000))
    world = World(tmp_path / "s", tmp_path / "r", max_bytes=1_000_000, max_incidents=100, log_files=(str(log),))
    names = []
    for number in range(8):
        one = finding(f"rule_{number}", 10 + number)
        world.find(one)
        world.work()
        names.append(max(world.folders(), key=lambda path: path.stat().st_mtime_ns).name)
        if number:  # the first stays open
            world.find(resolved(one, world.clock.wall_ns() + 1))
            world.clock.advance(61.0)
            world.find()
            world.work()
    left = [path.name for path in world.folders()]
    assert names[0] in left
    assert names[-1] in left
    assert names[1] not in left
    assert world.recorder.health()["deleted_total"] >= 1
    assert all(Bundle(path).damage() == [] for path in world.folders())
    world.close()


def test_a_closed_bundle_is_packed_where_that_is_configured(tmp_path: Path) -> None:
    from grpo_sentinel.incidents.bundle import open_bundle

    world = World(tmp_path / "s", tmp_path / "r", archive=True)
    world.step()
    world.find(finding())
    world.work()
    world.recorder.complete(RUN)
    world.work()
    (packed,) = world.folders()
    assert packed.name.endswith(".tar.gz")
    with open_bundle(packed) as bundle:
        assert bundle.damage() == []
        assert {one.rank for one in bundle.records()} == {0, 1}
    world.close()


def test_a_bundle_that_is_dear_to_write_is_written_anew_more_seldom(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = itertools.count(0, 10**9)  # every writing costs a second of CPU
    monkeypatch.setattr("grpo_sentinel.incidents.recorder.time.thread_time_ns", lambda: next(spent))
    world.step()
    world.find(finding())
    assert world.work() == 1
    written = 0
    for second in range(60):
        world.clock.advance(1.0)
        world.find(finding(f"more_{second}", root_id="nan_gradient:1:12"))
        written += world.work()
    assert written == 1, "a storm may take 2 % of a core"
