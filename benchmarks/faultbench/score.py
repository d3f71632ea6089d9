"""Judge a run: what the sentinel found against what was done, with the same seed's healthy twin as control.

A rule that also fires in the healthy twin (same trainer, configuration and seed, no fault) proves nothing and does not
count. Of what remains, told at or after the fault's first step (or after its moment: a rank that dies before it has
said anything of a step was last seen in the step before):

- `detected`: a finding of warning or critical; for mechanisms marked subtle a note is enough.
- `delay`: steps from the fault's first to the first such finding.
- `right_layer`: the root of the gravest incident, as the sentinel orders them, lies in a layer of the mechanism's list.
- `right_rank`: that root names the spoiled rank alone; None where there is one rank, all are spoiled, or two replicas
  differ in finite values and nobody can say which is right.
- `poisoned`: checkpoints of the run that hold a non-finite weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.faultbench.fault import HARD, SUBTLE, Mechanism
from grpo_sentinel.catalog import LAYERS
from grpo_sentinel.rules import load_rules

_GRAVITY = {"note": 0, "warning": 1, "critical": 2}
_BOUNDS = frozenset(rule.name for rule in load_rules() if rule.bound)


def judge(row: Mechanism, result: Mapping[str, Any], twin: Mapping[str, Any] | None) -> dict[str, Any]:
    """Score one watched run."""
    start = result["fault"]["step"] if result["fault"] else row.start
    usual = {finding["rule"] for finding in twin["findings"]} if twin else set()
    since_ns = result["fault"]["wall_ns"] if result["fault"] else 0
    after = [f for f in result["findings"] if f["step"] >= start or (since_ns and f["wall_ns"] >= since_ns)]
    told = [f for f in after if f["rule"] not in usual]
    told = [f for f in told if not (f["layer"] == "sentinel" and f["severity"] == "note")]
    least = 0 if row.severity == SUBTLE else 1
    counting = [f for f in told if _GRAVITY[f["severity"]] >= least]
    root = root_of(told) if counting else None
    expected = row.kind_rank(result["trainer"])
    first = min((f["step"] for f in counting), default=None)
    early = [f for f in result["findings"] if f not in after and f["severity"] != "note"]
    return {
        "mechanism": row.name,
        "layer": row.layer,
        "trainer": result["trainer"],
        "seed": result["seed"],
        "kind": row.severity,
        "slow": row.slow,
        "what": row.what,
        "start": start,
        "detected": bool(counting),
        "delay": None if first is None else max(0, first - start),
        "first_rule": next((f["rule"] for f in sorted(counting, key=lambda f: (f["step"], f["wall_ns"]))), None),
        "root_rule": root and root["rule"],
        "root_layer": root and root["layer"],
        "right_layer": bool(root and root["layer"] in row.roots),
        "expected_layers": list(row.roots),
        "rank": expected,
        "root_ranks": root["ranks"] if root else None,
        "right_rank": None if expected is None or root is None else root["ranks"] == [expected],
        "hard_within_1_step": None
        if row.severity != HARD
        else bool(counting) and first is not None and first - start <= 1,
        "poisoned": sorted(name for name, finite in result["checkpoints"].items() if not finite),
        "checkpoints": len(result["checkpoints"]),
        "halted_by": next((r["by"] for r in result["requests"] if r["state"] == "DONE"), None),
        "findings": len(told),
        "early_alarms": sorted({f["rule"] for f in early}),
        "rules": result["rules"],
        "last_step": max(result["last_step"], result["history_step"]),
        "seconds": result["seconds"],
    }


def root_of(findings: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Pick the root that the sentinel shows first: of the gravest chain, then by note, onset, bound, layer, step."""
    findings = list(findings)
    known = {f["id"] for f in findings}
    roots = [f for f in findings if f["root"] not in known]

    def key(root: Mapping[str, Any]) -> tuple[Any, ...]:
        chain = [f for f in findings if f["root"] == root["id"]]
        gravest = max(_GRAVITY[f["severity"]] for f in [root, *chain])
        guess = root["rule"] not in _BOUNDS
        return (
            -gravest,
            root["severity"] == "note",
            root["onset"],
            guess,
            LAYERS.index(root["layer"]),
            root["step"],
            root["wall_ns"],
        )

    return min(roots, key=key)


def totals(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum up scored runs."""
    rows = list(rows)
    hard = [row["hard_within_1_step"] for row in rows if row["hard_within_1_step"] is not None]
    ranked = [row["right_rank"] for row in rows if row["rank"] is not None]
    found = [row for row in rows if row["detected"]]
    return {
        "runs": len(rows),
        "mechanisms": len({row["mechanism"] for row in rows}),
        "detected": _share([row["detected"] for row in rows]),
        "right_layer": _share([row["right_layer"] for row in rows]),
        "right_layer_of_detected": _share([row["right_layer"] for row in found]),
        "right_rank": _share([bool(r) for r in ranked]),
        "hard_runs": len(hard),
        "hard_within_1_step": _share(hard),
        "median_delay_steps": sorted(row["delay"] for row in found)[len(found) // 2] if found else None,
        "checkpoints": sum(row["checkpoints"] for row in rows),
        "poisoned_checkpoints": sum(len(row["poisoned"]) for row in rows),
        "runs_with_early_alarm": sum(bool(row["early_alarms"]) for row in rows),
    }


def _share(values: list[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None
