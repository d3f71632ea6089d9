"""Rule files: what is wrong with one is said with file, line and remedy, and stops no other rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.catalog import LAYERS, signal_of
from grpo_sentinel.config import HaltingConfig, RuleOverride, RulesConfig
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.records import Action
from grpo_sentinel.rules import load_rules, parse_rules
from grpo_sentinel.rules.profiles import apply, builtin_profiles, choose, parse_profile

GOOD = """layer: policy
rules:
  - name: mine
    severity: warning
    detect:
      kind: bound
      signal: policy.entropy_nats
      max: 3
    message: "entropy {value}"
    why: I want it so
    remedies: [lower it]
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "max: 3",
            "max: high",
            "my.yaml line 8: rules[0].detect.max: 'high' in 'high' is neither a number nor a signal",
        ),
        ("max: 3", "top: 3", "my.yaml line 8: rules[0].detect.top: bound has no parameter top; known are signal, min"),
        (
            "kind: bound",
            "kind: bund",
            "my.yaml line 6: rules[0].detect.kind: unknown kind of detector 'bund'; known are bound",
        ),
        (
            "severity: warning",
            "severity: fatal",
            "my.yaml line 4: rules[0].severity: expected one of note, warning, critical",
        ),
        (
            "severity: warning",
            "severty: warning",
            "my.yaml line 4: rules[0].severty: unknown key 'severty'; did you mean severity?",
        ),
        ("name: mine", "name: My Rule", "my.yaml line 3: rules[0].name: expected a name of small letters"),
        ("{value}", "{value.__class__}", "my.yaml line 9: rules[0].message: {value.__class__} is no plain field"),
        ("{value}", "{wert}", "known are value, percent, limit, step"),
        ("max: 3", "hysteresis: 0.1", "my.yaml line 5: rules[0].detect: bound needs min or max"),
        ("why: I want it so", "for: 9 of 3", "the key 'why' is missing"),
        ("max: 3", "max: true", "expected a signal or a number, got True"),
        ("signal: policy.entropy_nats", "signal: policy.a -policy.b", "blanks around the operator"),
        ("rules:", "rulez:", "my.yaml: expected a mapping with a list `rules`"),
        ("layer: policy", "layer: [", "my.yaml line 3: not valid YAML"),
    ],
)
def test_a_mistake_is_said_with_file_line_and_remedy(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_rules(GOOD.replace(old, new), "my.yaml")
    assert said in str(error.value)


@pytest.mark.parametrize("value", ["0", "9 of 3", "3 in 10", "true", "-1"])
def test_a_persistence_that_cannot_be_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"line 12.*for"):
        parse_rules(GOOD + f"    for: {value}\n", "my.yaml")


def test_a_good_user_rule_loads_and_keeps_its_place() -> None:
    rule = parse_rules(GOOD, "my.yaml")[0]
    assert (rule.name, rule.source, rule.action, rule.signals) == (
        "mine",
        "my.yaml line 3",
        Action.ALERT,
        ("policy.entropy_nats",),
    )


def test_a_broken_user_rule_is_left_out_and_the_others_work(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(
        GOOD + GOOD.partition("rules:\n")[2].replace("mine", "second").replace("kind: bound", "kind: nonsense")
    )
    rules = load_rules(RulesConfig(files=(str(file),)), strict=False)
    assert "mine" in {rule.name for rule in rules}
    assert "second" not in {rule.name for rule in rules}
    assert len(rules.problems) == 1
    assert f"{file} line 15" in rules.problems[0]


def test_in_strict_mode_the_same_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(GOOD.replace("kind: bound", "kind: nonsense"))
    with pytest.raises(ConfigError, match="nonsense"):
        load_rules(extra=[file])


def test_a_missing_rule_file_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the rule file nowhere\.yaml"):
        load_rules(extra=["nowhere.yaml"])


def test_a_name_can_be_taken_only_once(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(GOOD.replace("mine", "reward_nonfinite"))
    with pytest.raises(ConfigError, match=r"the name 'reward_nonfinite' is taken \(reward.yaml line \d+\)"):
        load_rules(extra=[file])


def test_an_override_of_an_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no rule named 'grad_spyke'; did you mean grad_spike\?"):
        load_rules(RulesConfig(override={"grad_spyke": RuleOverride(enabled=False)}))


def test_an_override_with_a_wrong_parameter_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rules.override.kl_high: bound has no parameter maximum"):
        load_rules(RulesConfig(override={"kl_high": RuleOverride(parameters={"maximum": 3})}))


def test_an_override_reaches_persistence_and_nested_detectors() -> None:
    parameters = {"for": "2 of 4", "of.0.max": 0.8}
    rule = load_rules(RulesConfig(override={"kl_blow_up": RuleOverride(parameters=parameters)}))["kl_blow_up"]
    assert (rule.persistence, rule.detect["of"][0]["max"]) == ("2 of 4", 0.8)


def test_the_halting_section_sets_when_nonfinite_updates_halt_and_an_override_goes_before_it() -> None:
    halting = HaltingConfig(nonfinite_updates=5, nonfinite_window_steps=50)
    detect = load_rules(halting=halting)["nonfinite_updates"].detect
    assert (detect["count"], detect["window_steps"]) == (5, 50)
    override = RulesConfig(override={"nonfinite_updates": RuleOverride(parameters={"count": 2})})
    detect = load_rules(override, halting=halting)["nonfinite_updates"].detect
    assert (detect["count"], detect["window_steps"]) == (2, 50)


def test_every_layer_has_at_least_four_rules_and_all_together_forty() -> None:
    rules = load_rules()
    counts = {layer: sum(rule.layer == layer for rule in rules) for layer in LAYERS}
    assert min(counts.values()) >= 4, counts
    assert len(rules) >= 40


def test_every_rule_says_why_what_to_do_and_where_it_comes_from() -> None:
    for rule in load_rules():
        assert rule.why, rule.name
        assert rule.remedies, rule.name
        assert rule.reference, rule.name
        assert "{" in rule.message or rule.scope != "tick", rule.name


def test_every_signal_of_a_builtin_rule_stands_in_the_catalogue() -> None:
    for rule in load_rules():
        for name in rule.signals:
            assert signal_of(name.replace("[*]", "")) is not None, (rule.name, name)


def test_only_the_rules_that_the_product_promises_halt_as_shipped() -> None:
    halting = {rule.name for rule in load_rules() if rule.enabled and rule.action >= Action.CHECKPOINT}
    assert halting == {
        "nonfinite_updates", "grad_spike_persists", "grad_spike_damage", "host_memory_runs_out", "cuda_memory_runs_out",
        "cgroup_shm_runs_out",
    }  # fmt: skip


def test_every_builtin_profile_fits_the_builtin_rules() -> None:
    for profile in builtin_profiles():
        apply(load_rules(), (profile,))


def test_a_profile_is_picked_by_what_the_trainer_shows_and_an_unknown_key_matches_nothing() -> None:
    rules = load_rules()
    assert [p.name for p in choose(rules, {"num_iterations": 4, "beta": 0.04})] == ["several_iterations"]
    assert choose(rules, {}) == ()


def test_a_profile_can_be_named_and_a_wrong_name_lists_the_known() -> None:
    assert [p.name for p in choose(load_rules(RulesConfig(profile="gspo, dapo")), {})] == ["gspo", "dapo"]
    with pytest.raises(ConfigError, match="no profile 'gppo'; known are auto, none"):
        choose(load_rules(RulesConfig(profile="gppo")), {})


def test_a_profile_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown key 'if'"):
        parse_profile("name: x\nif: {beta: 0}\n", "x.yaml")


TRL = {
    "loss_type": "grpo", "beta": 0.04, "num_iterations": 1, "importance_sampling_level": "token", "num_generations": 8,
    "scale_rewards": "group", "epsilon_high": 0.2, "mask_truncated_completions": False, "peft": False, "moe": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "change", "picked"),
    [
        ("GRPO", {}, ["grpo", "on_policy"]),
        ("Dr. GRPO", {"loss_type": "dr_grpo", "scale_rewards": "none"}, ["dr_grpo", "on_policy"]),
        ("DAPO", {"loss_type": "dapo", "epsilon_high": 0.28}, ["dapo", "on_policy"]),
        ("GSPO", {"importance_sampling_level": "sequence"}, ["gspo", "on_policy"]),
        ("CISPO", {"loss_type": "cispo", "epsilon_high": 5.0}, ["cispo", "on_policy"]),
        ("beta = 0", {"beta": 0.0}, ["beta_zero", "grpo", "on_policy"]),
        ("several updates per rollout", {"num_iterations": 4}, ["grpo", "several_iterations"]),
        ("LoRA", {"peft": True}, ["grpo", "lora", "on_policy"]),
        ("MoE", {"moe": True}, ["grpo", "moe", "on_policy"]),
        ("ZeRO", {"zero_stage": 3}, ["grpo", "on_policy", "zero"]),
    ],
)
def test_each_algorithm_and_setting_picks_its_profiles(setting: str, change: dict[str, Any], picked: list[str]) -> None:
    assert [profile.name for profile in choose(load_rules(), {**TRL, **change})] == picked


def test_a_profile_that_changes_nothing_says_why() -> None:
    idle = [one for one in builtin_profiles() if not one.disable and not one.parameters]
    assert idle
    assert all("othing to change" in one.help for one in idle)
