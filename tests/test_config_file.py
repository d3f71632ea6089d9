"""A settings file says one thing: what it says twice, or in circles, is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_sentinel.config import load_config
from grpo_sentinel.errors import ConfigError, SentinelError
from grpo_sentinel.preflight.config_check import check_config
from grpo_sentinel.rules.load import parse_rules


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("halting: {dry_run: true}\nhalting: {cooldown_seconds: 5}\n", "line 2: halting stands in line 1 already"),
        ("halting:\n  dry_run: true\n  dry_run: false\n", "line 3: dry_run stands in line 2 already"),
        ("a: &x\n  b: *x\n", "a"),
        ("? [1, 2]\n: 3\n", ""),
    ],
)
def test_a_settings_file_that_contradicts_itself_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "sentinel.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert said in str(error.value)
    assert "sentinel.yaml" in str(error.value)


def test_an_anchor_may_be_used_in_several_places(tmp_path: Path) -> None:
    path = tmp_path / "sentinel.yaml"
    path.write_text("launch: &seconds {linger_seconds: 1}\n")
    assert load_config(path).launch.linger_seconds == 1


def test_aliases_that_stand_for_millions_of_settings_are_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 {learning_rate: 1.0e-6, x: 1}"]
    lines += [f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}, num_generations: 8}}" for n in range(1, 40)]
    path = tmp_path / "x.yaml"
    path.write_text("\n".join([*lines, "halting: *a39"]))
    with pytest.raises(ConfigError, match="aliases"):
        load_config(path)
    with pytest.raises(SentinelError, match="aliases"):
        check_config(path)
    path.write_text("a: &a\n  b: *a\n")
    with pytest.raises(SentinelError, match="neither"):
        check_config(path)


@pytest.mark.parametrize(
    "rule",
    [
        "detect: *a39",
        "detect: {kind: any, of: [*a39]}",
        "detect: " + "[" * 100_000,
        "detect: {kind: bound, max: 2026-13-45}",
    ],
)
def test_a_file_of_rules_that_multiplies_or_nests_without_end_is_refused_at_once(rule: str) -> None:
    aliases = ["a0: &a0 {kind: bound}", *(f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}}}" for n in range(1, 40))]
    text = "\n".join(
        ["layer: data", *aliases, "rules:", "  - name: mine", "    severity: warning", f"    {rule}", "    message: m"]
    )
    with pytest.raises(ConfigError):
        parse_rules(text, "rules.yaml")
