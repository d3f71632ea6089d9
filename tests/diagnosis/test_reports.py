"""Public fault reports that carry a series or real log lines: the right layer, and silence where nothing is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.diagnosis.triage import diagnose
from grpo_sentinel.history.logs.lines import Line

REPORTS = {
    report["id"]: report
    for text in (Path(__file__).parent / "data" / "reports.jsonl").read_text().splitlines()
    for report in [json.loads(text)]
}

SERIES = (
    "C003", "C006", "C016", "C018", "C019", "C020", "C022", "C023", "C052", "C055", "C059", "C063", "C068",
    "C069", "C073", "C078", "C079", "C084", "C097", "C099", "C103", "C104", "C105",
)  # fmt: skip
LINES = (
    "C013", "C014", "C015", "C022", "C026", "C030", "C037", "C038", "C039", "C042", "C044", "C045", "C048", "C049", "C060", "C061",
    "C062", "C071", "C075", "C076", "C085", "C093", "C102", "C105", "C106",
)  # fmt: skip
UNDECIDABLE = ("C072", "C080")
# what these reports tell in words, as the lines that the trainer prints for it
TOLD: dict[str, list[str]] = {
    "C001": ["(WorkerDict pid=1) WARN: grad_norm is not finite: nan"] * 4,
    "C002": [f"step:{s} - actor/pg_loss:0.01 - actor/grad_norm:nan - critic/score/mean:0.4" for s in range(1, 6)],
    "C004": ["{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-06, 'reward': 0.5, 'reward_std': 0.2}"] * 5,
    "C005": ["{'loss': 0.0, 'grad_norm': 0.4, 'learning_rate': 1e-06, 'reward': 0.5, 'reward_std': 0.2}"] * 200,
    "C007": [
        f"step:{s} - critic/score/mean:{0.5 - s / 100:.3f} - response_length/mean:{900 + 50 * s} - response_length/clip_ratio:{s / 42:.3f}"
        for s in range(1, 41)
    ],
    "C008": [
        f"step {s}: {{'loss': 0.01, 'grad_norm': 0.3, 'vllm_vs_local_logprob_diff_mean': {0.012 if s < 450 else 0.012 + (s - 450) / 300:.4f}}}"
        for s in range(400, 550, 5)
    ] + ["ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready."],
    "C011": [
        f"step:{s} - actor/kl_loss:{0.01 if s < 30 else 4.0} - actor/grad_norm:{0.3 if s < 30 else 60} - critic/score/mean:{0.6 if s < 34 else 0.0}"
        for s in range(1, 61)
    ],
    "C024": [
        f"[deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {2**n}, reducing to {2 ** (n - 1)}" for n in range(32, 26, -1)
    ] + ["{'loss': 0.1, 'grad_norm': 0.4, 'reward': 0.5, 'reward_std': 0.2}"] * 6,
    "C032": ["Failed to initialize NVML: Driver/library version mismatch"],
    "C040": ["kernel: NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."],
    "C041": [f"{{'loss': 0.1, 'grad_norm': 0.4, 'kl': 1.7, 'reward': 0.5, 'global_step/max_steps': '{s}/90'}}" for s in range(1, 9)],
    "C043": [f"{{'loss': 0.01, 'grad_norm': 0.{3 + n % 3}, 'kl': nan, 'reward': 0.5}}" for n in range(9)],
    "C046": [f"{{'loss': 0.01, 'grad_norm': 0.{3 + n % 3}, 'kl': -0.{n % 7}, 'reward': 0.5}}" for n in range(9)],
    "C047": [f"{{'loss': {0.5 - s / 500:.3f}, 'objective/kl': {s / 15:.2f}, 'kl': {s / 15:.2f}, 'reward': {0.5 - s / 100:.3f}}}" for s in range(1, 151, 3)],
    "C050": ["{'loss': 0.0, 'grad_norm': 0.4, 'reward': 0.5}"] * 3 + ["{'loss': nan, 'grad_norm': nan, 'reward': nan}"],
    "C057": [
        f"{{'loss': 0.0, 'grad_norm': 0.4, 'reward': {min(0.99, 0.5 + s / 20) if s < 20 else 0.4}, 'reward_std': {0.3 if s < 8 or s > 19 else 0.01}}}"
        for s in range(1, 31)
    ],
    "C058": [
        f"step:{s} - actor/entropy:{0.4 + s / 30:.3f} - actor/kl_loss:{0.001 + s * s / 4000:.4f} - critic/score/mean:{0.6 - s / 100:.3f} - response_length/mean:{900 - 8 * s}"
        for s in range(1, 51)
    ],
    "C065": [f"step {s}: {{'train/loss': 0.1, 'train/grad_norm': 0.4, 'train/train_rollout_logprob_abs_diff': 0.998}}" for s in range(1, 5)],
    "C070": ["{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 0.0, 'reward': 0.5, 'reward_std': 0.2}"],
    "C089": [f"Epoch: [3][{n}/500]  loss: 2.31{n} (2.4)  grad_norm: 0.39{n} (inf)" for n in range(9)],
    "C090": [f"{{'loss': 0.0, 'grad_norm': 0.1, 'reward': 0.1, 'reward_std': 0.2, 'completions/mean_length': 1.{n}}}" for n in range(5)],
    "C091": ["step 10/90  loss=0.693147  lr=1e-05", "step 20/90  loss=0.693147  lr=1e-05", "step 30/90  loss=0.693147  lr=1e-05"],
    "C098": [f"step {s}/500  loss={0.95 + s / 2000:.3f}  grad_norm=0.4" for s in range(1, 380, 10)] + ["step 380/500  loss=nan  grad_norm=nan"] * 3,
}  # fmt: skip
# Not here: C025 (its label is the trainer's missing check, the log shows a NaN), C056 (one row, nothing wrong in it to
# see), C077 (two points of a memory curve), and those that speak of code or of things no log shows.


def rendered(report: dict[str, Any]) -> list[str]:
    """Print a report's series as its trainer would."""
    series = {k: v if isinstance(v, list) else [v] for k, v in report["series"].items()}
    steps = series.pop("step", None)
    out = []
    for place in range(max(map(len, series.values()))):
        row = {k: v[place] for k, v in series.items() if place < len(v) and v[place] is not None}
        step = steps[place] if steps else place + 1
        if any(name.startswith(("actor/", "critic/")) for name in row):
            out.append(f"step:{step} - " + " - ".join(f"{k}:{v}" for k, v in row.items()))
        elif "act_loss" in row:
            out.append(
                f"epoch: 0|step: {step}|ppo_ep: 1|act_loss: {row['act_loss']}|cri_loss: {row['cri_loss']}|unsuper_loss: 0.0"
            )
            out.append(f"average reward score: {row['average reward score']}")
        elif "losses/total_loss" in row:
            out.append("[" + " | ".join(f"{k}: {v}" for k, v in row.items()) + "]")
        elif "vllm_residual_gib" in row:
            out.append(f"Sleep mode freed 43.82 GiB memory, {row['vllm_residual_gib']} GiB memory is still in use.")
        elif "generation_kl_error_fault" in row:
            out += [
                "===== Step 1/100 =====",
                f"  • Loss: 0.0\n  • Generation KL Error: {row['generation_kl_error_fault']}".split("\n")[1],
            ]
        elif "is_ratio" in row:
            out += ["{'loss': 0.01, 'grad_norm': 0.3, 'sampling/importance_sampling_ratio/mean': 0.171}"] * 4
        elif report["framework"].startswith(("slime",)):
            out.append(f"step {step}: " + str(row))
        else:
            out.append("{" + ", ".join(f"'{k}': {v}" for k, v in {"step": step, **row}.items()) + "}")
    return out


def verdict_of(lines: list[str]):
    return diagnose(Line("log", number, text) for number, text in enumerate(lines, 1)).verdict


def wanted(name: str) -> str:
    layer = REPORTS[name]["layer"]
    return "none" if layer == "not_a_fault" else str(layer)


def test_one_loss_without_a_number_among_four_rows_is_a_suspicion_and_no_verdict() -> None:
    verdict = verdict_of(rendered(REPORTS["C059"]))  # its reporter thinks it plausible, no more
    assert verdict.layer == "undetermined"
    assert verdict.says.startswith("probably data, but")


@pytest.mark.parametrize("name", [name for name in SERIES if name != "C059"])
def test_a_report_with_a_series_gets_its_layer(name: str) -> None:
    lines = rendered(REPORTS[name])
    if name in LINES or name in ("C023",):
        lines += REPORTS[name]["log_facts"]
    verdict = verdict_of(lines)
    assert verdict.layer == wanted(name), f"{verdict.name}: {verdict.says}"


@pytest.mark.parametrize("name", LINES)
def test_a_report_with_lines_of_a_log_gets_its_layer(name: str) -> None:
    verdict = verdict_of(REPORTS[name]["log_facts"])
    assert verdict.layer == wanted(name), f"{verdict.name}: {verdict.says}"


@pytest.mark.parametrize("name", TOLD)
def test_a_report_told_in_words_gets_its_layer_from_the_lines_it_speaks_of(name: str) -> None:
    verdict = verdict_of(TOLD[name])
    assert verdict.layer == wanted(name), f"{verdict.name}: {verdict.says}"


@pytest.mark.parametrize("name", UNDECIDABLE)
def test_what_cannot_be_decided_is_not(name: str) -> None:
    verdict = verdict_of(REPORTS[name]["log_facts"])
    assert verdict.layer == "undetermined"
    assert verdict.confidence <= 0.35
