"""docs/rules.md is what the rules say."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from grpo_sentinel.config import Config
from grpo_sentinel.rules import load_rules, parse_rules
from grpo_sentinel.rules.document import document

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"


def test_the_page_is_fresh() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == document(), "run `python -m grpo_sentinel.rules.document docs/rules.md`"


def test_every_rule_stands_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [rule.name for rule in load_rules() if f"### {rule.name}\n" not in text] == []


def test_the_examples_on_the_page_load() -> None:
    override, own = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    config = Config.model_validate(yaml.safe_load(override))
    assert load_rules(config.rules.model_copy(update={"files": ()}))["kl_high"].persistence == "5"
    assert parse_rules(own, "own.yaml")[0].name == "accuracy_below_a_tenth"
