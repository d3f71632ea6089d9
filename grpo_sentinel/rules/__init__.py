"""Rules: what is wrong, told from frames, events, samples and heartbeats. Pure: no clock, no I/O while judging."""

from __future__ import annotations

from grpo_sentinel.rules.engine import Engine
from grpo_sentinel.rules.load import load_rules, parse_rules
from grpo_sentinel.rules.rule import Rule, RuleSet

__all__ = ["Engine", "Rule", "RuleSet", "load_rules", "parse_rules"]
