"""docs/rules/ is what the rules say."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from grpo_sentinel.config import Config
from grpo_sentinel.rules import load_rules, parse_rules
from grpo_sentinel.rules.document import covered, pages, uncovered

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "rules"


def test_the_pages_are_fresh() -> None:
    stored = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.md")}
    assert stored == pages(), "run `python -m grpo_sentinel.rules.document docs/rules`"


def test_every_rule_stands_on_the_page_of_its_layer() -> None:
    text = pages()
    assert [rule.name for rule in load_rules() if f"### {rule.name}\n" not in text[f"{rule.layer}.md"]] == []


def test_the_examples_on_the_page_load() -> None:
    override, own = re.findall(r"```yaml\n(.*?)```", (FOLDER / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    config = Config.model_validate(yaml.safe_load(override))
    assert load_rules(config.rules.model_copy(update={"files": ()}))["kl_high"].persistence == "5"
    assert parse_rules(own, "own.yaml")[0].name == "accuracy_below_a_tenth"


def test_every_published_check_is_a_rule_or_has_a_reason_why_not() -> None:
    """Entries are numbered without gaps, so one that nobody speaks of shows."""
    known = covered(load_rules()).keys() | {name[:3] for entries in uncovered().values() for name in entries}
    sizes = {"D": 17, "R": 21, "P": 35, "G": 22, "O": 12, "M": 14, "V": 19, "H": 20, "X": 10, "S": 5}
    entries = [f"{letter}{number:02d}" for letter, size in sizes.items() for number in range(1, size + 1)]
    assert [entry for entry in entries if entry not in known] == []
    assert all(len(why) > 20 for entries in uncovered().values() for why in entries.values())
