"""A remedy lives in one place: causes of a log take those of the rules, and the table beside them holds the rest."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

import grpo_sentinel.diagnosis
from grpo_sentinel.history.logs.markers import MARKERS
from grpo_sentinel.rules import remedies
from grpo_sentinel.rules.load import load_rules
from grpo_sentinel.rules.remedies import remedies_of, remedies_of_rule

TABLE = yaml.safe_load((Path(remedies.__file__).parent / "remedies.yaml").read_text())
RULES = {rule.name: rule.remedies for rule in load_rules().rules}
NOTHING_TO_TRY = {"healthy", "nothing_read", "ended", "doubtful"}
LAYERS_OF_EXCEPTIONS = ("data", "reward", "gradient", "optimizer", "memory", "communication", "tooling")


def named_causes() -> set[str]:
    """Every cause that a line or a check can name."""
    out = {marker.name for marker in MARKERS if marker.role in ("cause", "symptom")}
    for path in Path(grpo_sentinel.diagnosis.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("found", "Candidate", "replace"):
                given = {word.arg: word.value for word in node.keywords}.get(
                    "name", node.args[1] if len(node.args) > 1 else None
                )
                out |= (
                    {one.value for one in ast.walk(given) if isinstance(one, ast.Constant)}
                    if given is not None
                    else set()
                )
    return out - NOTHING_TO_TRY - {"python_exception"} | {f"python_exception.{layer}" for layer in LAYERS_OF_EXCEPTIONS}


def test_every_cause_that_can_be_named_has_something_to_try() -> None:
    assert sorted(cause for cause in named_causes() if not remedies_of(cause)) == []


def test_the_table_holds_no_cause_that_nothing_names() -> None:
    used = named_causes() | {entry["like"] for entry in TABLE.values() if "like" in entry} | {"python_error"}
    assert sorted(set(TABLE) - used) == []


def test_every_rule_and_cause_that_the_table_leans_on_exists() -> None:
    assert sorted(rule for entry in TABLE.values() for rule in entry.get("rules", ()) if rule not in RULES) == []
    assert sorted(entry["like"] for entry in TABLE.values() if "like" in entry and entry["like"] not in TABLE) == []


def test_no_remedy_stands_in_two_places() -> None:
    own = [text for entry in TABLE.values() for text in entry.get("also", ())]
    of_rules = {text for texts in RULES.values() for text in texts}
    assert len(own) == len(set(own))
    assert [text for text in own if text in of_rules] == []


@pytest.mark.parametrize("name", ["reward_constant", "xid_error", "kl_overflow"])
def test_a_cause_takes_the_very_words_of_its_rule(name: str) -> None:
    cause = {"reward_constant": "constant_reward", "xid_error": "xid"}.get(name, name)
    assert remedies_of(cause)[: len(RULES[name])] == RULES[name] == remedies_of_rule(name)
