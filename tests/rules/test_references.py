"""Where a reader is sent: every reference that is shown leads to something that ships with the package."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from grpo_sentinel.cli import cli
from grpo_sentinel.records import Frame, Mode
from grpo_sentinel.rules import Engine, RuleSet, load_rules, parse_rules

ROOT = Path(__file__).parents[2]
NOT_SHIPPED = re.compile(r"MISSION|ARCHITECTURE|TRAINERS|COMPONENTS|fault matrix|\bLOGS\b|\bissue:")


def test_every_rule_of_ours_leads_to_its_own_place_in_our_documents() -> None:
    for rule in load_rules():
        page, _, _ = rule.see.partition(",")
        assert f"\n### {rule.name}\n" in (ROOT / page).read_text(), rule.see
        assert rule.see.endswith(f"`grpo-sentinel rules show {rule.name}`")
    shown = CliRunner().invoke(cli, ["rules", "show", "replicas_differ"])
    assert shown.exit_code == 0


def test_a_finding_carries_what_its_reader_can_find_and_a_user_rule_its_own_reference() -> None:
    text = (
        "layer: policy\nrules:\n  - name: high\n    detect: {kind: bound, signal: policy.loss, max: 1}\n    severity: "
        "warning\n    message: high\n    why: because\n    remedies: [do]\n    reference: https://runbook.example/high\n"
    )
    (mine,) = (replace(rule, builtin=False) for rule in parse_rules(text, "mine.yaml"))
    ours = replace(mine, name="gradient_rule", builtin=True, reference="G01")
    frame = Frame(run_id="r", step=1, mode=Mode.TRAIN, wall_ns=1, ranks={0: {"policy.loss": 2.0}}, missing=())
    found = {one.rule: one.reference for one in Engine(RuleSet(rules=(mine, ours)), run_id="r").frame(frame)}
    assert found["high"] == "https://runbook.example/high"
    assert found["gradient_rule"].startswith("docs/rules/policy.md, gradient_rule; ")


def test_no_shipped_document_and_no_rule_names_a_document_that_is_not_shipped() -> None:
    for rule in load_rules():
        told = " ".join((rule.message, rule.why, *rule.remedies, rule.reference))
        assert not NOT_SHIPPED.search(told), f"{rule.name}: {told}"
    for document in (*ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md"), ROOT / "README.md"):
        assert not NOT_SHIPPED.search(document.read_text()), document
