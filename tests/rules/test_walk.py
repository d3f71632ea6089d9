"""The walk backwards: each layer wrong, fine or not seen, and where it ends."""

from __future__ import annotations

from typing import Any

from grpo_sentinel.records import EventRecord, Finding, Frame, Mode
from grpo_sentinel.rules import Engine, load_rules
from grpo_sentinel.rules.walk import ORDER, Walk, as_json, as_lines, walk

HEALTHY = {
    "data.out_of_vocabulary": 0.0, "data.shape_mismatch": 0.0, "reward.nonfinite": 0.0, "policy.loss_nonfinite": 0.0,
    "gradient.norm_preclip": 1.0, "gradient.nonfinite_tensors": 0.0, "optimizer.nonfinite_weights": 0.0,
}  # fmt: skip


def walked(*steps: dict[str, float]) -> Walk:
    engine = Engine(load_rules(), run_id="r")
    found: dict[str, Finding] = {}
    for step, change in enumerate(steps, 1):
        row = {name: value for name, value in {**HEALTHY, **change}.items() if value is not None}
        frame = Frame(run_id="r", step=step, mode=Mode.TRAIN, wall_ns=step * 10**9, ranks={0: row})
        found.update({finding.finding_id: finding for finding in engine.frame(frame)})
    return walk(engine.rules, found.values(), engine.abstaining())


def stops(walk: Walk) -> dict[str, Any]:
    return {stop.layer: stop for stop in walk.stops}


def test_a_fault_in_the_reward_that_shows_in_the_gradient_ends_at_the_reward() -> None:
    way = walked({}, {}, {"reward.nonfinite": 2.0, "gradient.nonfinite_tensors": 4.0})
    assert way.root is not None
    assert way.root.rule == "reward_nonfinite"
    at = stops(way)
    assert at["reward"].state == at["gradient"].state == "wrong"
    assert at["data"].state == "fine as far as seen"
    assert way.conclusion.startswith("wrong first: reward, since step 3: 2 samples")
    assert way.conclusion.endswith("data fine as far as seen; last healthy step 2, checkpoint not known")


def test_what_could_not_be_seen_is_not_fine() -> None:
    way = walked({}, {})
    at = stops(way)
    assert at["device"].state == "not seen"
    assert at["data"].questions["shapes"] == "fine"
    assert at["data"].questions["dtypes"] == "not seen"
    assert "device" in way.conclusion.partition("not seen at all: ")[2]
    assert at["time"].unseen["rank_dead"] == "no heartbeat so far"


def test_every_rule_stands_at_exactly_one_stop() -> None:
    way = walked({}, {"gradient.nonfinite_tensors": 4.0})
    names = [
        name for stop in way.stops for name in (*stop.fine, *stop.unseen, *{finding.rule for finding in stop.wrong})
    ]
    assert sorted(names) == sorted(rule.name for rule in load_rules())
    assert tuple(stop.layer for stop in way.stops) == ORDER


def test_the_walk_prints_each_layer_with_its_findings_and_blind_spots() -> None:
    way = walked({}, {"gradient.nonfinite_tensors": 4.0})
    text = "\n".join(as_lines(way))
    assert "  gradient: wrong (" in text
    assert "✗ since step 2: the gradient of step 2 is not finite" in text
    assert "  device: not seen (0 of " in text
    assert as_json(way)["layers"][1]["wrong"] == ["grad_nonfinite:0:2"]


def test_the_newest_checkpoint_from_before_the_first_wrong_step_is_named() -> None:
    engine = Engine(load_rules(), run_id="r")
    found = []
    for step in range(1, 13):
        if step % 4 == 0:
            body = {"path": f"out/checkpoint-{step}", "step": step}
            engine.event(
                EventRecord(run_id="r", rank=0, sequence=step, step=step, wall_ns=0, kind="checkpoint", body=body)
            )
        row = {**HEALTHY, "gradient.nonfinite_tensors": float(step == 11)}
        found += engine.frame(Frame(run_id="r", step=step, mode=Mode.TRAIN, wall_ns=step, ranks={0: row}))
    way = walk(engine.rules, found[:1], engine.abstaining(), engine.checkpoints)
    assert (way.last_healthy_step, way.checkpoint) == (10, "out/checkpoint-8")
    assert "last healthy step 10, checkpoint out/checkpoint-8" in way.conclusion


def test_a_note_is_told_and_makes_no_layer_wrong() -> None:
    way = walked({}, {"optimizer.step_skipped": 1.0, "optimizer.skipped_updates": 1.0})
    at = stops(way)["optimizer"]
    assert [finding.rule for finding in at.noted] == ["update_skipped"]
    assert not at.wrong
    assert at.state != "wrong"
    assert way.root is None
    assert "    · step 2: the gate stopped the update of step 2 [update_skipped]" in as_lines(way)
    assert as_json(way)["layers"][0]["noted"] == [at.noted[0].finding_id]
