"""Public fault reports whose facts are signals, not lines of a log: the root that the rules name is in the right layer.

The other reports are in tests/diagnosis/test_reports.py, as the lines that their trainers print.
"""

from __future__ import annotations

from typing import Any

import pytest

from grpo_sentinel.records import Severity
from grpo_sentinel.rules import load_rules
from grpo_sentinel.rules.cases import play
from grpo_sentinel.rules.walk import walk

RULES = load_rules()
HEALTHY = {"policy.entropy_nats": "0.8~0.05x60", "reward.mean": "0.4~0.05x60", "reward.std": "0.3~0.02x60"}

FACTS: dict[str, tuple[str, dict[str, Any]]] = {
    # report: (layer of its root cause, what it says in signals)
    "C009 exp() of the log-ratio overflows, the loss is finite, the gradient is NaN": (
        "policy",
        {"series": {"policy.loss_nonfinite": "0x40", "policy.kl_k3_overflow": "0x29 3 0x10",
                    "gradient.nonfinite_tensors": "0x29 310 0x10"}},
    ),
    "C012 grad_norm NaN, then reward 0 and '!' for ever": (
        "gradient",
        {"series": {"gradient.norm_preclip": "0.4~0.05x30 nanx5", "gradient.nonfinite_tensors": "0x30 310x5",
                    "policy.single_token_ratio": "0x32 1x8", "reward.mean": "0.4~0.02x32 0x8", "reward.std": "0.3~0.02x32 0x8"}},
    ),
    "C027 out of memory in the log-prob forward": ("memory", {"series": {**HEALTHY, "memory.cuda_ooms": "0x20 1x20"}}),
    "C051 all reward functions return None for some samples": (
        "reward",
        {"series": {"reward.nonfinite": "0x10 2x5", "policy.advantage_nonfinite": "0x10 8x5", "policy.loss_nonfinite": "0x10 1x5"}},
    ),
    "C054 the policy answers '!!!!'": (
        "policy",
        {"series": {"policy.single_token_ratio": "0x40 0.9x20", "reward.mean": "0.4~0.02x42 0x18", "reward.std": "0.3~0.02x42 0x18"}},
    ),
    "C066 sampled at a temperature that the trainer does not know of": (
        "policy", {"series": {"policy.on_policy": "1x20", "policy.ratio_mean": "0.86x20"}},
    ),
    "C067 tokens and groups of other prompts": (
        "data", {"series": {"data.mixed_groups": "4x20", "policy.advantage_abs_max": "2.2~0.1x20"}},
    ),
    "C074 out of memory at the second backward": (
        "memory", {"series": {"memory.cuda_ooms": "0 1"}, "events": [
            {"kind": "exception", "step": 2, "body": {"type": "OutOfMemoryError", "message": "CUDA out of memory"}}]},
    ),
    "C077 memory of the process grows with every step": (
        "memory",
        {"seconds": 30, "series": {"memory.rss_bytes": "12.1e9..25.8e9x60", "memory.host_available_bytes": "14e9..0.4e9x60"}},
    ),
    "C081 trainer and engine route differently, the gap and the gradient grow": (
        "policy",
        {"series": {"policy.sampling_gap_mean_nats": "0.02..0.2x200", "gradient.norm_preclip": "0.3..1.2x200"}},
    ),
    "C082 rollouts two and a half steps old: KL times thirty, then entropy collapses": (
        "policy",
        {"series": {"policy.kl_k3_nats": "0.02~0.002x40 0.9x10 3x10", "policy.entropy_nats": "0.8~0.03x50 0.01x10"}},
    ),
    "C087 a gradient that is not finite and that nobody checks": (
        "gradient",
        {"series": {"gradient.nonfinite_tensors": "0x30 5 0x2 310x5", "optimizer.nonfinite_weights": "0x32 310x6"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTS)
def test_the_root_of_a_reported_fault_is_in_its_layer(name: str) -> None:
    layer, body = FACTS[name]
    found = {finding.finding_id: finding for finding in play(body, RULES)}
    graver = {key: finding for key, finding in found.items() if finding.severity > Severity.NOTE}
    root = walk(RULES, graver.values(), {}).root
    assert root is not None, "nothing was found"
    assert root.layer == layer, root.message


def test_the_healthy_part_of_the_reports_raises_nothing() -> None:
    assert [f.rule for f in play({"series": HEALTHY}, RULES) if f.severity > Severity.NOTE] == []
