"""The engine: life of a finding, abstention, ranks, modes, refinement, configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from grpo_sentinel.config import RuleOverride, RulesConfig
from grpo_sentinel.records import Action, EventRecord, Finding, FindingState, Frame, Mode, Sample, Severity
from grpo_sentinel.rules import Engine, RuleSet, load_rules, parse_rules
from grpo_sentinel.rules.load import override_rule

WALL = 1_700_000_000_000_000_000


def frame(step: int, *rows: dict[str, float], mode: Mode = Mode.TRAIN, missing: tuple[int, ...] = ()) -> Frame:
    ranks = dict(enumerate(rows))
    return Frame(run_id="r", step=step, mode=mode, wall_ns=WALL + step * 10**9, ranks=ranks, missing=missing)


def engine_of(text: str) -> Engine:
    return Engine(RuleSet(rules=tuple(parse_rules(text, "test.yaml"))), run_id="r")


def rule(name: str = "high", detect: str = "{kind: bound, signal: policy.x, max: 1}", **more: Any) -> str:
    keys = {
        "severity": "warning",
        "message": '"{signal} is {value}, limit {limit}"',
        "why": "because",
        "remedies": "[do]",
    }
    keys |= {key.replace("for_", "for"): value for key, value in more.items()}
    lines = "".join(f"    {key}: {value}\n" for key, value in keys.items())
    return f"layer: policy\nrules:\n  - name: {name}\n    detect: {detect}\n{lines}"


def states(findings: list[Finding]) -> list[str]:
    return [finding.state.value for finding in findings]


def test_a_finding_fires_once_stays_silent_while_bad_and_resolves_once() -> None:
    engine = engine_of(rule(resolve_after=2, cooldown=0))
    told = [engine.frame(frame(step, {"policy.x": value})) for step, value in enumerate([0, 2, 3, 4, 0, 0, 0], 1)]
    assert [len(found) for found in told] == [0, 1, 0, 0, 0, 1, 0]
    assert told[1][0].state is FindingState.FIRING
    assert told[5][0].state is FindingState.RESOLVED
    assert told[1][0].finding_id == told[5][0].finding_id == "high:0:2"
    assert engine.active() == ()


def test_persistence_waits_for_n_of_m_and_dates_the_onset_back_to_the_first() -> None:
    engine = engine_of(rule(for_="3 of 5"))
    found = [engine.frame(frame(step, {"policy.x": value})) for step, value in enumerate([0, 2, 0, 2, 2], 1)]
    assert [len(part) for part in found] == [0, 0, 0, 0, 1]
    assert (found[4][0].step, found[4][0].onset_step) == (5, 2)


def test_a_bad_point_older_than_the_window_does_not_count() -> None:
    engine = engine_of(rule(for_="2 of 3"))
    assert not any(
        engine.frame(frame(step, {"policy.x": value})) for step, value in enumerate([2, 0, 0, 2, 0, 0, 2], 1)
    )


def test_during_the_cooldown_nothing_fires_and_a_lasting_fault_fires_after_it() -> None:
    engine = engine_of(rule(resolve_after=1, cooldown=5))
    values = [2, 0, 2, 2, 2, 2, 2, 2]
    fired = [s for s, v in enumerate(values, 1) if "firing" in states(engine.frame(frame(s, {"policy.x": v})))]
    assert fired == [1, 7]


def test_between_limit_and_hysteresis_a_finding_neither_fires_nor_resolves() -> None:
    engine = engine_of(rule(detect="{kind: bound, signal: policy.x, max: 1, hysteresis: 0.2}", resolve_after=1))
    told = [states(engine.frame(frame(s, {"policy.x": v}))) for s, v in enumerate([0.9, 1.1, 0.9, 0.9, 0.7], 1)]
    assert told == [[], ["firing"], [], [], ["resolved"]]


def test_a_missing_signal_is_neither_alarm_nor_all_clear_and_is_said() -> None:
    engine = engine_of(rule(resolve_after=1))
    assert engine.abstaining() == {"high": "no value of policy.x so far"}
    engine.frame(frame(1, {"policy.x": 2}))
    assert engine.abstaining() == {}
    for step in range(2, 80):
        assert engine.frame(frame(step, {"policy.y": 0})) == []
    assert [finding.rule for finding in engine.active()] == ["high"]
    assert engine.abstaining() == {"high": "no value of policy.x"}


def test_a_signal_that_comes_only_on_some_steps_does_not_make_a_rule_abstain() -> None:
    engine = engine_of(rule(for_=2))
    for step in range(1, 20):
        engine.frame(frame(step, {"policy.x": 0.0} if step % 4 == 1 else {"policy.y": 0.0}))
    assert engine.abstaining() == {}
    engine.frame(frame(21, {"policy.x": 2}))
    assert states(engine.frame(frame(25, {"policy.x": 2}))) == ["firing"]


def test_nan_is_not_judged_by_a_bound() -> None:
    engine = engine_of(rule())
    assert engine.frame(frame(1, {"policy.x": float("nan")})) == []
    assert engine.abstaining() == {"high": "policy.x is not a number"}


def test_a_finding_takes_the_samples_that_are_named_for_one_of_its_signals_before_or_after_it_fires() -> None:
    text = rule(detect="{kind: nonfinite, counts: [data.out_of_vocabulary]}", message='"{value} on {ranks}: {subject}"')
    named = event(5, "sample", {"signal": "data.out_of_vocabulary", "text": "row 3 (id q-17)"})
    row = {"data.out_of_vocabulary": 2.0}
    engine = engine_of(text)
    engine.event(named)
    (found,) = engine.frame(frame(5, row))
    assert (found.subject, found.message) == ("row 3 (id q-17)", "2 on rank 0: row 3 (id q-17)")
    engine = engine_of(text)
    engine.event(event(5, "sample", {"signal": "reward.nonfinite", "text": "row 9"}))
    (found,) = engine.frame(frame(5, row))
    assert found.subject == ""
    (refined,) = engine.event(named)
    assert (refined.finding_id, refined.subject) == (found.finding_id, "row 3 (id q-17)")
    engine = engine_of(text)
    engine.event(named)
    (found,) = engine.frame(frame(6, row))
    assert found.subject == "", "that of another step says nothing of this one"


def test_a_spike_that_fires_takes_the_rank_and_micro_batch_as_soon_as_one_own_norm_stands_out() -> None:
    engine = engine_of(rule(attribution="own_gradient", cooldown=0))
    first = engine.frame(frame(5, {"policy.x": 9.0}, {"policy.x": 9.0}))
    assert [finding.ranks for finding in first] == [(0, 1)], "after the reduce the spike is that of all"
    near = {"policy.x": 9.0, "gradient.norm_before_reduce": 4.0, "gradient.worst_micro_batch": 0.0}
    assert engine.frame(frame(6, near, near | {"gradient.norm_before_reduce": 19.0})) == []
    assert engine.frame(frame(7, {"policy.x": 9.0}, near | {"gradient.norm_before_reduce": 90.0})) == [], (
        "one is unknown"
    )
    far = near | {"gradient.norm_before_reduce": 21.0, "gradient.worst_micro_batch": 3.0}
    (refined,) = engine.frame(frame(8, near, far))
    assert (refined.finding_id, refined.ranks, refined.subject) == (first[0].finding_id, (1,), "micro-batch 3")


def test_training_and_evaluation_have_trackers_of_their_own() -> None:
    engine = engine_of(rule(for_=2, mode="any"))
    assert engine.frame(frame(1, {"policy.x": 2})) == []
    assert engine.frame(frame(1, {"policy.x": 2}, mode=Mode.EVALUATION)) == []
    assert len(engine.frame(frame(2, {"policy.x": 2}))) == 1


def test_a_training_rule_does_not_look_at_evaluation() -> None:
    engine = engine_of(rule())
    assert engine.frame(frame(1, {"policy.x": 2}, mode=Mode.EVALUATION)) == []


def test_ranks_merge_by_the_catalogue_and_the_breaking_ranks_are_named() -> None:
    engine = Engine(load_rules(), run_id="r")
    rows = ({"reward.nonfinite": 0.0}, {"reward.nonfinite": 3.0}, {"reward.nonfinite": 0.0}, {"reward.nonfinite": 5.0})
    found = engine.frame(frame(7, *rows))
    assert [(finding.rule, finding.value, finding.ranks) for finding in found] == [("reward_nonfinite", 8.0, (1, 3))]


def test_a_nan_on_one_rank_survives_the_merge() -> None:
    text = rule(detect="{kind: nonfinite, values: [policy.loss]}")
    assert len(engine_of(text).frame(frame(1, {"policy.loss": 0.1}, {"policy.loss": float("nan")}))) == 1


def test_a_rule_with_a_label_runs_once_for_each_and_names_it() -> None:
    engine = engine_of(rule(detect='{kind: bound, signal: "reward.func_mean[*]", max: 1}'))
    found = engine.frame(frame(1, {"reward.func_mean[a]": 0, "reward.func_mean[b]": 2, "reward.func_mean[c]": 3}))
    assert [finding.subject for finding in found] == ["b", "c"]


def test_a_rank_rule_judges_every_rank_alone() -> None:
    engine = engine_of(rule(scope="rank", for_=2))
    engine.frame(frame(1, {"policy.x": 2}, {"policy.x": 0}))
    assert engine.frame(frame(2, {"policy.x": 0}, {"policy.x": 2})) == []
    found = engine.frame(frame(3, {"policy.x": 0}, {"policy.x": 2}))
    assert [finding.ranks for finding in found] == [(1,)]


def test_a_broken_bound_keeps_its_steps_out_of_baselines() -> None:
    text = rule(detect="{kind: collapse, signal: policy.y, below: 0.5, baseline: 3, skip: 0}").rstrip() + (
        "\n  - name: bound\n    detect: {kind: bound, signal: policy.x, max: 1}\n    bound: true\n"
        "    severity: note\n    message: m\n    why: w\n    remedies: []\n"
    )
    engine = engine_of(text)
    for step in range(1, 4):
        engine.frame(frame(step, {"policy.x": 2, "policy.y": 0.001}))
    for step in range(4, 7):
        engine.frame(frame(step, {"policy.x": 0, "policy.y": 1.0}))
    assert [finding.rule for finding in engine.frame(frame(7, {"policy.x": 0, "policy.y": 0.1}))] == ["high"]


def event(step: int, kind: str, body: dict[str, Any], rank: int = 1) -> EventRecord:
    return EventRecord(run_id="r", rank=rank, sequence=step, step=step, wall_ns=WALL, kind=kind, body=body)


def test_an_event_that_comes_later_gives_a_firing_finding_its_rank_and_parameter_under_the_same_id() -> None:
    engine = Engine(load_rules(), run_id="r")
    for step in range(1, 6):
        engine.frame(frame(step, *[{"gradient.nonfinite_tensors": 0.0}] * 2))
    first = engine.frame(frame(6, *[{"gradient.nonfinite_tensors": 1.0}] * 2))
    assert [(f.rule, f.ranks, f.action) for f in first] == [("grad_nonfinite", (), Action.ALERT)]
    assert "parameter not known, rank not known" in first[0].message, "no bare question mark"
    body = {"where": "before_reduce", "names": ["layers.0.weight"]}
    refined = engine.event(event(7, "nonfinite", body))
    assert [(f.finding_id, f.ranks, f.subject) for f in refined] == [(first[0].finding_id, (1,), "layers.0.weight")]
    assert "rank 1" in refined[0].message
    assert engine.event(event(7, "nonfinite", body)) == [], "nothing new, nothing said"
    assert engine.active()[0].ranks == (1,)


def test_the_third_nonfinite_gradient_within_twenty_steps_asks_for_checkpoint_and_halt_with_its_culprit() -> None:
    engine = Engine(load_rules(), run_id="r")
    asked = []
    for step in range(1, 20):
        bad = 1.0 if step in (12, 13, 14) else 0.0
        if bad:
            engine.event(event(step, "nonfinite", {"where": "after_reduce", "names": ["w"]}, rank=0))
        if step in (13, 14):
            engine.event(event(step, "nonfinite", {"where": "before_reduce", "names": ["w"]}))
        found = engine.frame(frame(step, *[{"gradient.nonfinite_tensors": bad}] * 2))
        asked += [f for f in found if f.action >= Action.CHECKPOINT and f.state is FindingState.FIRING]
    assert [(f.rule, f.step, f.onset_step, f.ranks, f.subject) for f in asked] == [
        ("nonfinite_updates", 14, 12, (1,), "w")
    ]
    assert asked[0].severity is Severity.CRITICAL


def test_both_numbers_of_the_nonfinite_halt_are_overridable() -> None:
    change = RuleOverride(parameters={"count": 2, "window_steps": 5})
    rules = load_rules(RulesConfig(override={"nonfinite_updates": change}))
    engine = Engine(rules, run_id="r")
    fired = []
    for step in range(1, 30):
        bad = 1.0 if step in (3, 9, 12) else 0.0
        fired += [
            f.step
            for f in engine.frame(frame(step, {"gradient.nonfinite_tensors": bad}))
            if f.rule == "nonfinite_updates"
        ]
    assert fired[0] == 12


def test_the_skips_of_a_loss_scaler_do_not_count() -> None:
    engine = Engine(load_rules(), run_id="r")
    for step in range(1, 12):
        row = {"gradient.nonfinite_tensors": 1.0, "optimizer.scaler_skips": float(step)}
        assert engine.frame(frame(step, row)) == []


def test_a_rank_that_is_missing_from_a_step_is_no_zero() -> None:
    engine = Engine(load_rules(), run_id="r")
    for step in range(1, 6):
        engine.frame(frame(step, {"sentinel.core_active": 1.0}, {"sentinel.core_active": 1.0}))
    found = engine.frame(frame(6, {"sentinel.core_active": 1.0}, missing=(1,)))
    assert found == []


def test_samples_of_two_devices_are_judged_apart() -> None:
    engine = Engine(load_rules(), run_id="r")

    def sample(entity: str, errors: float) -> list[Finding]:
        return engine.sample(Sample(source="nvml", entity=entity, wall_ns=WALL, values={"device.xid_errors": errors}))

    assert [sample(*pair) for pair in (("a", 5), ("b", 0), ("a", 5))] == [[], [], []]
    found = sample("b", 1)
    assert [(f.rule, f.subject, f.layer) for f in found] == [("xid_error", "b", "device")]


def test_the_config_event_picks_the_profiles_and_says_why_a_rule_rests() -> None:
    engine = Engine(load_rules(), run_id="r")
    engine.event(event(1, "config", {"beta": 0.0, "loss_type": "dr_grpo", "scale_rewards": "none"}, rank=0))
    assert engine.profile_names == ("beta_zero", "dr_grpo")
    assert engine.abstaining()["kl_high"].startswith("beta is 0")
    assert engine.frame(frame(1, {"policy.advantage_abs_max": 9.0, "policy.advantage_abs_bound": 2.0})) == []


def test_configuring_again_keeps_the_state_of_rules_that_do_not_change() -> None:
    engine = Engine(load_rules(), run_id="r")
    engine.frame(frame(1, {"reward.nonfinite": 1.0}))
    engine.configure({"beta": 0.0})
    assert [f.rule for f in engine.active()] == ["reward_nonfinite"]
    assert engine.frame(frame(2, {"reward.nonfinite": 1.0})) == []


def test_a_users_value_wins_over_a_profile() -> None:
    change = RuleOverride(parameters={"max": 0.1})
    engine = Engine(load_rules(RulesConfig(override={"clipping_heavy": change})), run_id="r")
    engine.configure({"importance_sampling_level": "sequence"})
    assert engine.profile_names == ("gspo",)
    assert engine.rules["clipping_heavy"].detect["max"] == 0.1


def test_a_disabled_rule_is_silent_and_listed() -> None:
    engine = Engine(load_rules(RulesConfig(disabled=("reward_nonfinite",))), run_id="r")
    assert engine.frame(frame(1, {"reward.nonfinite": 1.0})) == []
    assert engine.abstaining()["reward_nonfinite"] == "switched off in the configuration"


def test_an_override_changes_severity_and_action() -> None:
    rules = load_rules()
    changed = override_rule(rules["reward_nonfinite"], RuleOverride(severity="warning", action="checkpoint-and-halt"))
    assert (changed.severity, changed.action) == (Severity.WARNING, Action.CHECKPOINT_AND_HALT)


def test_a_user_rule_whose_numbers_explode_stops_no_other() -> None:
    text = rule(detect="{kind: bound, signal: policy.x * policy.x, max: 1}").rstrip() + (
        "\n  - name: other\n    detect: {kind: bound, signal: policy.y, max: 1}\n"
        "    severity: note\n    message: m\n    why: w\n    remedies: []\n"
    )
    rules = RuleSet(rules=tuple(parse_rules(text, "x")))
    engine = Engine(rules, run_id="r")
    engine._tracker(rules.rules[0], "TRAIN", None, "")._detector = _Raises()
    assert [f.rule for f in engine.frame(frame(1, {"policy.x": 2.0, "policy.y": 2.0}))] == ["other"]
    assert "failed at step 1" in engine.abstaining()["high"]


class _Raises:
    def update(self, view: object) -> None:
        raise TypeError("too large")


def test_findings_keep_what_a_person_needs() -> None:
    found = Engine(load_rules(), run_id="run-7").frame(frame(3, {"reward.nonfinite": 1.0}))[0]
    assert (found.run_id, found.layer, found.signal, found.limit) == ("run-7", "reward", "reward.nonfinite", 0.0)
    assert found.why
    assert found.remedies
    assert "docs/rules/reward.md" in found.reference
    assert replace(found, root_id="") == found


def test_a_run_begun_anew_resolves_what_fired_and_fires_again() -> None:
    engine = engine_of(rule(resolve_after=20))
    engine.frame(frame(5, {"policy.x": 2}))
    gone = engine.begin_anew()
    assert states(gone) == ["resolved"]
    assert engine.active() == ()
    assert states(engine.frame(frame(3, {"policy.x": 2}))) == ["firing"]


def test_a_profile_named_by_hand_holds_before_any_configuration_is_known() -> None:
    engine = Engine(load_rules(RulesConfig(profile="beta_zero")), run_id="r")
    assert engine.profile_names == ("beta_zero",)
    engine.frame(frame(1, {"policy.kl_k3_nats": 9.0}))
    engine.configure({})
    assert engine.abstaining()["kl_high"] == "beta is 0, KL to the reference is not held"


def test_a_change_of_profile_in_the_middle_keeps_the_cooldown_of_the_other_rules() -> None:
    text = rule(resolve_after=1, cooldown=5)
    engine = engine_of(text)
    for step, value in enumerate([0.0] * 30 + [2.0, 0.0], 1):
        engine.frame(frame(step, {"policy.x": value}))
    engine.configure({"beta": 1})
    fired = [step for step in range(33, 45) if states(engine.frame(frame(step, {"policy.x": 2.0})))]
    assert fired == [37]


def test_evaluation_and_training_at_one_step_have_findings_of_their_own() -> None:
    engine = Engine(load_rules(), run_id="r")
    found = []
    for step in range(1, 20):
        for mode, bad in ((Mode.TRAIN, step in (5, 6)), (Mode.EVALUATION, step == 5)):
            row = {"reward.nonfinite": float(bad), "data.samples": 8.0, "reward.mean": 0.5 + 0.01 * step}
            found += engine.frame(Frame(run_id="r", step=step, mode=mode, wall_ns=step, ranks={0: row}))
    told = [one for one in found if one.rule == "reward_nonfinite"]
    assert len({one.finding_id for one in told}) == 2
    assert [one.message.startswith("in evaluation: ") for one in told if one.state is FindingState.FIRING] == [
        False,
        True,
    ]
    assert sum(one.state is FindingState.RESOLVED for one in told) == 2
    assert engine.active() == ()


def test_two_ranks_whose_function_fails_at_one_step_have_findings_of_their_own() -> None:
    engine = Engine(load_rules(), run_id="r")
    found = []
    for step in range(1, 20):
        row = {"reward.func_nothing[judge]": float(step == 5), "reward.mean": 0.5}
        found += engine.frame(Frame(run_id="r", step=step, mode=Mode.TRAIN, wall_ns=step, ranks={0: row, 1: dict(row)}))
    told = [one for one in found if one.rule == "reward_func_returns_nothing" and one.state is FindingState.FIRING]
    assert [(one.ranks, one.subject) for one in told] == [((0,), "judge"), ((1,), "judge")]
    assert len({one.finding_id for one in told}) == 2
    assert engine.active() == ()


@pytest.mark.parametrize("name", ["my reward", "judge [v2]", "a > b", "x\ny", "{value}", "[*]", "]", "\x1b[2J", "n" * 500])
def test_a_reward_function_of_any_name_is_judged(name: str) -> None:
    engine = Engine(load_rules(), run_id="r")
    found = []
    for step in range(1, 9):
        row = {
            f"reward.func_infinite[{name}]": float(step == 8),
            f"reward.func_mean[{name}]": 0.5,
            f"reward.func_std[{name}]": 0.1,
        }
        found += engine.frame(Frame(run_id="r", step=step, mode=Mode.TRAIN, wall_ns=step, ranks={0: row}))
    assert [(one.rule, one.subject) for one in found] == [("reward_func_infinite", name)]
    assert name.replace("\n", "?").replace("\x1b", "?")[:199] in found[0].message
    assert found[0].message.isprintable(), "whatever a function is called, a terminal shows it and obeys nothing"
