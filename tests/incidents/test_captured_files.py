"""What the agent captured on its way into a bundle: linked, checked against the samples setting, cleared when taken."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentinel_batches as made
from incident_world import World

from grpo_sentinel.incidents.bundle import Bundle
from grpo_sentinel.incidents.evidence import spool_dir, sweep
from grpo_sentinel.incidents.model import State
from grpo_sentinel.records import Action, HaltState, RankIdentity, Severity
from grpo_sentinel.views import HaltStatus


def captured(folder: Path, *, samples: str = "hashed", ids: bool = False, step: int = 3) -> Path:
    """A file as the agent writes it, with or without token ids."""
    name = "batch/0/completion_ids" if ids else "batch/0/advantages"
    facts = json.dumps({"what": "capture", "step": step, "samples": samples})
    header: dict[str, Any] = {"__metadata__": {"sentinel": facts}}
    header[name] = {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}
    text = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step}-gradient.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 8)
    return path


def in_spool(world: World, rank: int = 0) -> Path:
    return spool_dir(world.state) / made.RUN / f"rank-{rank:05d}"


def write(world: World) -> Bundle:
    world.step()
    world.find(made.finding(severity=Severity.CRITICAL, step=3, onset_step=3))
    world.work()
    return world.bundle()


def test_a_captured_file_is_linked_into_the_bundle_and_leaves_the_spool_when_it_closes(world: World) -> None:
    path = captured(in_spool(world))
    world.store_event("capture", {"what": "capture", "path": str(path), "reason": "gradient"}, step=3)
    bundle = write(world)
    inside = bundle.path / "tensors" / f"rank-00000-{path.name}"
    assert inside.samefile(path), "no second copy while the bundle may be written anew"
    world.recorder.complete(made.RUN)
    world.work()
    assert not path.exists()
    assert not in_spool(world).exists()
    closed = world.bundle()
    assert closed.about.state is State.CLOSED
    assert closed.damage() == []
    assert (closed.path / "tensors" / inside.name).is_file()


def test_a_file_outside_of_the_spool_is_copied_and_left_alone(world: World, tmp_path: Path) -> None:
    path = captured(tmp_path / "elsewhere")
    world.store_event("capture", {"what": "capture", "path": str(path), "reason": "gradient"}, step=3)
    inside = write(world).path / "tensors" / f"rank-00000-{path.name}"
    assert not inside.samefile(path)
    world.recorder.complete(made.RUN)
    world.work()
    assert path.exists()


def test_token_ids_do_not_get_into_a_bundle_that_hashes_samples(world: World) -> None:
    path = captured(in_spool(world), samples="full", ids=True)
    world.store_event("capture", {"what": "capture", "path": str(path), "reason": "gradient"}, step=3)
    bundle = write(world)
    assert not (bundle.path / "tensors").exists()
    assert "token ids" in bundle.manifest["missing"][f"tensors/rank-00000-{path.name}"]


def test_a_snapshot_and_a_trace_go_in_as_captures(world: World) -> None:
    in_spool(world).mkdir(parents=True)
    path = in_spool(world) / "step-3-memory.json"
    path.write_text("{}")
    world.store_event("capture", {"what": "memory", "path": str(path), "reason": "request"}, step=3)
    world.store_event("note", {"path": "/etc/passwd.json"}, step=3)
    bundle = write(world)
    assert [entry["name"] for entry in bundle.manifest["files"] if entry["what"] == "captured"] == [
        "captures/rank-00000-step-3-memory.json"
    ]


def asked(action: Action, state: HaltState, by: str = "user") -> HaltStatus:
    return HaltStatus(request_id=4, state=state, action=action, reason="why", requested_by=by, step=1)


@pytest.mark.parametrize("action", [Action.CAPTURE, Action.STACKS, Action.MEMORY_SNAPSHOT, Action.ANOMALY_TRACE])
def test_evidence_that_a_person_asks_for_opens_one_incident_that_is_over_when_it_is_taken(
    world: World, action: Action
) -> None:
    world.step()
    for state in (HaltState.REQUESTED, HaltState.VOTED, HaltState.DONE):
        world.recorder.update(replace(world.snapshot(), halt=asked(action, state)), (), world.ring)
        world.work()
    assert world.bundle().about.title == f"{action.name.lower().replace('_', '-')} asked for: why"
    world.clock.advance(61)
    world.recorder.tick()
    world.work()
    assert world.bundle().about.state is State.CLOSED


@pytest.mark.parametrize(
    "halt", [asked(Action.CHECKPOINT, HaltState.DONE), asked(Action.CAPTURE, HaltState.DONE, "rule")]
)
def test_a_checkpoint_or_what_a_rule_asks_for_opens_none(world: World, halt: HaltStatus) -> None:
    world.step()
    world.recorder.update(replace(world.snapshot(), halt=halt), (), world.ring)
    world.work()
    assert not world.recorder.root.exists()


def test_the_stacks_of_living_ranks_are_taken_when_a_critical_incident_begins(world: World) -> None:
    taken: list[tuple[list[int], str]] = []

    def take(directory: Path, identities: list[RankIdentity], why: str) -> None:
        taken.append(([identity.rank for identity in identities], why))

    world.recorder._stacks = take  # type: ignore[assignment]
    write(world)
    assert taken == [([0, 1], made.finding().message)]
    world.clock.advance(3)
    world.recorder.tick()
    assert world.work() == 1, "written once more, with the stacks"


def test_captures_that_nobody_took_go_after_a_week(tmp_path: Path) -> None:
    old, fresh = captured(tmp_path / "old" / "rank-00000"), captured(tmp_path / "fresh" / "rank-00000")
    for path in (old, old.parent, old.parent.parent):
        os.utime(path, (1, 1))
    sweep(tmp_path)
    assert not old.exists()
    assert fresh.exists()
