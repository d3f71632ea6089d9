"""Peers on the same runs, each through its documented interface and with its defaults.

rlwatch         `monitor.log_step(step, ...)` of rlwatch.attach(framework="manual"), fed with the trainer's log through
                rlwatch's own names for TRL
rldoctor        `LiveMonitor.log(metrics, step)` of rl_doctor.live, fed with the trainer's log, and a last `check()`
trl_log         the trainer's own log (TRL's names): is any logged number not finite?
isfinite_loss   Lightning's check: is the local loss finite, on every rank
detect_anomaly  `torch.autograd.set_detect_anomaly(True)`, in a run of its own since it raises
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Alert = tuple[int, str, str, str]  # step, detector, layer, severity
PEERS = ("rlwatch", "rldoctor", "trl_log", "isfinite_loss", "detect_anomaly")
_RLWATCH = {
    "entropy": "entropy",
    "kl": "kl_divergence",
    "reward": "reward_mean",
    "reward_std": "reward_std",
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "clip_ratio/region_mean": "clip_fraction",
}
_LAYERS = {
    "entropy_collapse": "policy",
    "kl_explosion": "policy",
    "reward_hacking": "reward",
    "advantage_variance": "policy",
    "loss_nan": "policy",
    "gradient_norm_spike": "gradient",
    "reward_mean_drift": "reward",
    "advantage_collapse": "reward",
    "clip_saturation": "policy",
    "grad_pathology": "gradient",
    "gradient_pathology": "gradient",
    "kl_drift": "policy",
    "length_hacking": "reward",
    "plateau": "reward",
    "reward_composition": "reward",
    "train_inference_mismatch": "policy",
    "throughput": "time",
}
_LOGGED = {"loss": "policy", "grad_norm": "gradient", "kl": "policy", "entropy": "policy", "learning_rate": "optimizer"}


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Read the trainer's log of a run: one dictionary of numbers a step."""
    place = folder / "log.jsonl"
    rows = []
    for line in place.read_text().splitlines() if place.is_file() else []:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def installed() -> dict[str, str]:
    """Versions of the peers; "" where one is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    out = {}
    for name in ("rlwatch", "rldoctor"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = ""
    return out


def rlwatch_alerts(rows: Sequence[Mapping[str, Any]]) -> list[Alert]:
    import rlwatch

    logging.getLogger("rlwatch").setLevel(logging.CRITICAL)
    out: list[Alert] = []
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stderr(io.StringIO()):
        config = rlwatch.load_config()
        config.framework, config.storage.log_dir = "manual", place
        monitor = rlwatch.RLWatch(config)
        monitor.start()
        for row in rows:
            fed = {ours: row[name] for name, ours in _RLWATCH.items() if name in row}
            for alert in monitor.log_step(int(row["step"]), **fed):
                out.append((int(row["step"]), alert.detector, _LAYERS.get(alert.detector, ""), alert.severity))
        monitor.stop()
    return out


def rldoctor_alerts(rows: Sequence[Mapping[str, Any]]) -> list[Alert]:
    from rl_doctor.live import LiveMonitor

    logging.getLogger("rl-doctor").setLevel(logging.CRITICAL)
    often = 25 if len(rows) <= 300 else 250  # its default; a check reads the whole run, so rarer in long ones
    monitor = LiveMonitor(
        config={"algorithm": "grpo", "num_generations": 6}, check_every=often, on_finding=lambda finding: None
    )
    out: list[Alert] = []
    with contextlib.redirect_stderr(io.StringIO()):
        for row in rows:
            metrics = {name: value for name, value in row.items() if name != "step"}
            out += [_doctor(finding, row) for finding in monitor.log(metrics, step=int(row["step"]))]
        if rows:
            out += [_doctor(finding, rows[-1]) for finding in monitor.check()]
    return out


def _doctor(finding: Any, row: Mapping[str, Any]) -> Alert:
    return int(row["step"]), finding.detector, _LAYERS.get(finding.detector, ""), finding.severity.name.lower()


def trl_log_alerts(rows: Sequence[Mapping[str, Any]]) -> list[Alert]:
    out: list[Alert] = []
    for row in rows:
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                layer = _LOGGED.get(name, "reward" if name.startswith("reward") else "")
                out.append((int(row["step"]), f"{name} not finite", layer, "critical"))
    return out


def loss_alerts(result: Mapping[str, Any]) -> list[Alert]:
    steps = sorted({step for steps in result["loss_nonfinite"].values() for step in steps})
    return [(step, "loss not finite", "policy", "critical") for step in steps]


def alerts(name: str, result: Mapping[str, Any], folder: Path) -> list[Alert]:
    """What one peer says of one run. Results are kept beside the log: a peer's verdict does not change."""
    if name == "isfinite_loss":
        return loss_alerts(result)
    rows = read_log(folder)
    if name == "trl_log":
        return trl_log_alerts(rows)
    kept = folder / f"peer-{name}.json"
    if kept.is_file():
        return [(a[0], a[1], a[2], a[3]) for a in json.loads(kept.read_text())]
    found = rlwatch_alerts(rows) if name == "rlwatch" else rldoctor_alerts(rows)
    kept.write_text(json.dumps(found))
    return found


def score(
    found: Sequence[Alert], usual: Sequence[Alert], start: int, roots: Sequence[str], hard: bool
) -> dict[str, Any]:
    """Judge a peer's alerts as the sentinel's are judged: what the healthy twin also gets does not count."""
    known = {alert[1] for alert in usual}
    counting = [alert for alert in found if alert[0] >= start and alert[1] not in known]
    first = min(counting, default=None)
    return {
        "detected": bool(counting),
        "delay": None if first is None else first[0] - start,
        "right_layer": bool(first and first[2] in roots),
        "hard_within_1_step": (bool(first) and first[0] - start <= 1) if hard else None,
        "says": first[1] if first else None,
    }
