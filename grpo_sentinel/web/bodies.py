"""What the API answers with: snapshots as strict JSON.

Strict JSON has no NaN: a float that is not finite is the string "NaN", "Infinity" or "-Infinity", one that is missing
is null. Times are nanoseconds since the epoch, as in the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_sentinel.catalog import LAYERS
from grpo_sentinel.history.codec import plain
from grpo_sentinel.records import Finding, Severity
from grpo_sentinel.views import RankStatus, Snapshot, chains, layers_seen

KEY_SIGNALS = (
    "policy.loss",
    "reward.mean",
    "reward.std",
    "policy.kl_k3_nats",
    "policy.entropy_nats",
    "gradient.norm_preclip",
    "optimizer.learning_rate",
    "optimizer.skipped_updates",
    "data.completion_length_mean",
    "memory.rss_bytes",
    "memory.cuda_reserved_bytes",
    "time.step_seconds",
    "sentinel.agent_share",
)
"""What the page shows of every rank without being asked for more."""

MOST_WITH_VALUES = 32
"""With more ranks than this a summary names none of their values: it is sent twice a second. The heat map has them."""


def status_body(snapshots: Mapping[str, Snapshot], run_id: str | None) -> dict[str, Any] | None:
    """Give one run in full and the names of all; None when there is no run of that name."""
    snapshot = pick(snapshots, run_id)
    if snapshot is None:
        return None
    more = {"runs": list(snapshots), "layers": layers(snapshot), "chains": chains_body(snapshot.findings)}
    return {**plain(snapshot), **more}


def pick(snapshots: Mapping[str, Snapshot], run_id: str | None) -> Snapshot | None:
    """Choose the run that is asked for, or the first; an empty snapshot when there is none at all."""
    if run_id:
        return snapshots.get(run_id)
    return next(iter(snapshots.values()), Snapshot())


def summary_body(
    snapshot: Snapshot,
    runs: Iterable[str],
    problems: Sequence[str] = (),
    *,
    past: bool = False,
    walk: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Give what the page shows at a glance; small, because it is sent about every second.

    `past` says that the run is not watched any more and the snapshot comes from the history. From `walk` comes how many
    rules of each layer could judge: a layer in which none could is not well, it is not judged.
    """
    values = KEY_SIGNALS if len(snapshot.ranks) <= MOST_WITH_VALUES else ()
    return {
        "runs": list(runs),
        "past": past,
        "run_id": snapshot.run_id,
        "node": snapshot.node,
        "wall_ns": snapshot.wall_ns,
        "layers": layers(snapshot),
        "judging": {stop["layer"]: _judging(stop) for stop in (walk or {}).get("layers", ())},
        "ranks": [_rank(status, values) for _, status in sorted(snapshot.ranks.items())],
        "findings": plain(snapshot.findings),
        "chains": chains_body(snapshot.findings),
        "halt": plain(snapshot.halt),
        "samples": [plain(sample) for _, sample in sorted(snapshot.samples.items())],
        "abstaining": len(snapshot.abstaining),
        "notes": [note for note in snapshot.notes if note not in problems],
        "problems": list(problems),
        "health": plain(snapshot.health),
    }


def _judging(stop: Mapping[str, Any]) -> list[int]:
    """Give how many rules of a layer could judge, and how many it has."""
    judged = len(stop["fine"]) + len(stop["wrong"])
    return [judged, judged + len(stop["not_seen"])]


def chains_body(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Give the ids of every root and of what follows from it: the worst chain first, among equals the earliest."""
    told = [(max(one.severity for one in (root, *rest)), root, rest) for root, rest in chains(findings)]
    return [
        {
            "root": root.finding_id,
            "followers": [one.finding_id for one in sorted(rest, key=lambda one: one.onset_step)],
            "severity": worst.name.lower(),
        }
        for worst, root, rest in sorted(told, key=lambda one: (-one[0], one[1].onset_step))
    ]


def layers(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Say for every layer, lowest first, whether it is watched and the worst that fires in it.

    `state` is "critical", "warning", "note", "ok", or "unknown" when no signal of the layer has arrived.
    """
    out = []
    watched = layers_seen(snapshot)
    heads = [root for root, _ in chains(snapshot.findings) if root.severity > Severity.NOTE]
    for layer in LAYERS:
        firing = [finding for finding in snapshot.findings if finding.layer == layer]
        worst = max((finding.severity for finding in firing), default=None)
        state = worst.name.lower() if worst is not None else ("ok" if layer in watched else "unknown")
        roots = [root.message for root in heads if root.layer == layer]
        out.append({"layer": layer, "state": state, "findings": len(firing), "root": roots[0] if roots else ""})
    return out


def _rank(status: RankStatus, names: Sequence[str]) -> dict[str, Any]:
    identity = status.identity
    return {
        "rank": identity.rank,
        "role": identity.role,
        "host": identity.host,
        "pid": identity.pid,
        "liveness": status.liveness.value,
        "step": status.last_step,
        "phase": status.heartbeat.phase.name.lower(),
        "phase_since_wall_ns": status.heartbeat.phase_since_wall_ns,
        "updated_wall_ns": max(status.updated_wall_ns, status.heartbeat.updated_wall_ns),
        "closed_detail": status.closed_detail,
        "missed_records": status.missed_records,
        "bad_slots": status.bad_slots,
        "values": {name: plain(status.values[name]) for name in names if name in status.values},
    }
