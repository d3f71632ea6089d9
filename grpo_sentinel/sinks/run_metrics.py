"""Metrics about runs, ranks, findings, requests, devices and the sentinel itself: rows of (metric, labels, value)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from grpo_sentinel.records import HaltState, Liveness, Sample
from grpo_sentinel.sinks.exposition import PREFIX, Family, family_and_labels, flat_name
from grpo_sentinel.views import RankStatus, Snapshot

Row = tuple[Family, dict[str, str], float]


def _family(name: str, kind: str, help_text: str) -> Family:
    return Family(PREFIX + name, kind, help_text)


RUN = _family("run", "info", "a run that this node takes part in")
SNAPSHOT_TIME = _family("snapshot_timestamp_seconds", "gauge", "when the sidecar last looked at the run")
PROBLEMS = _family("problems", "gauge", "parts of the sentinel that are off or broken")
ABSTAINING = _family("rules_abstaining", "gauge", "rules that cannot judge because their signals are missing")
RANK_STATE = _family("rank_state", "gauge", "1 for the state that the process of a rank is in")
RANK_STEP = _family("rank_step", "gauge", "newest optimizer step of a rank")
RANK_PHASE = _family("rank_phase", "gauge", "1 for the phase that the training thread of a rank is in")
RANK_PHASE_SINCE = _family("rank_phase_since_timestamp_seconds", "gauge", "when the training thread entered its phase")
RANK_UPDATE = _family("rank_last_update_timestamp_seconds", "gauge", "newest record of a rank")
RANK_HEARTBEAT = _family("rank_heartbeat_timestamp_seconds", "gauge", "newest sign of progress of a rank")
RANK_MISSED = _family("rank_missed_records", "counter", "records that were overwritten before the sidecar read them")
RANK_BAD = _family("rank_bad_slots", "counter", "slots of the ring whose checksum was wrong")
FINDINGS = _family("findings", "gauge", "findings that fire now; rank is empty when it is not known")
FINDING_ONSET = _family("finding_onset_step", "gauge", "first abnormal step of a finding that fires now")
HALT_STATE = _family("halt_state", "gauge", "1 for the state of the newest request to checkpoint or halt")
HALT_REQUEST = _family("halt_request_id", "gauge", "number of the newest request, 0 = none")
HALT_STEP = _family("halt_step", "gauge", "step that the ranks agreed on for the newest request")
DEVICE_UPDATE = _family("device_last_update_timestamp_seconds", "gauge", "newest reading of a GPU or host")
DEVICE_UNSUPPORTED = _family("device_unsupported", "gauge", "1 for a reading that the device does not offer")
DEVICE_FAILED = _family("device_reading_failed", "gauge", "1 for a reading that failed the last time")


def run_rows(snapshot: Snapshot) -> Iterator[Row]:
    """Give what is known of one run apart from its signals."""
    run = {"run_id": snapshot.run_id, "node": snapshot.node}
    parents = [s.identity.parent_run_id for s in snapshot.ranks.values() if s.identity.parent_run_id]
    sizes = [s.identity.world_size for s in snapshot.ranks.values()]
    about = {"parent_run_id": parents[0] if parents else "", "world_size": str(max(sizes, default=0))}
    yield RUN, {**run, **about}, 1.0
    yield SNAPSHOT_TIME, run, snapshot.wall_ns / 1e9
    yield PROBLEMS, run, float(len(snapshot.problems))
    yield ABSTAINING, run, float(len(snapshot.abstaining))
    for status in snapshot.ranks.values():
        yield from _rank_rows(run, status)
    yield from _finding_rows(run, snapshot)
    for state in HaltState:
        yield HALT_STATE, {**run, "state": state.name.lower()}, float(snapshot.halt.state is state)
    yield HALT_REQUEST, run, float(snapshot.halt.request_id)
    yield HALT_STEP, run, float(snapshot.halt.step)


def _rank_rows(run: dict[str, str], status: RankStatus) -> Iterator[Row]:
    identity, beat = status.identity, status.heartbeat
    labels = {**run, "rank": str(identity.rank), "role": identity.role}
    for state in Liveness:
        yield RANK_STATE, {**labels, "state": state.value}, float(status.liveness is state)
    yield RANK_STEP, labels, float(status.last_step)
    yield RANK_UPDATE, labels, status.updated_wall_ns / 1e9
    yield RANK_HEARTBEAT, labels, beat.updated_wall_ns / 1e9
    yield RANK_PHASE, {**labels, "phase": beat.phase.name.lower()}, 1.0
    yield RANK_PHASE_SINCE, labels, beat.phase_since_wall_ns / 1e9
    yield RANK_MISSED, labels, float(status.missed_records)
    yield RANK_BAD, labels, float(status.bad_slots)


def _finding_rows(run: dict[str, str], snapshot: Snapshot) -> Iterator[Row]:
    counts: Counter[tuple[str, str, str, str, str]] = Counter()
    onset: dict[tuple[str, str, str, str, str], int] = {}
    for finding in snapshot.findings:
        for rank in [str(rank) for rank in finding.ranks] or [""]:
            root = "true" if not finding.root_id else "false"
            key = (finding.rule, finding.layer, finding.severity.name.lower(), rank, root)
            counts[key] += 1
            onset[key] = min(onset.get(key, finding.onset_step), finding.onset_step)
    names = ("rule", "layer", "severity", "rank", "root")
    for key, count in counts.items():
        labels = {**run, **dict(zip(names, key, strict=True))}
        yield FINDINGS, labels, float(count)
        yield FINDING_ONSET, labels, float(onset[key])


def sample_rows(snapshots: Iterable[Snapshot], oldest_wall_ns: int, *, gpus: bool = True) -> Iterator[Row]:
    """Give the newest reading of every GPU and host once, however many runs share the node; silent ones are left out.

    Devices belong to a node, not to a run, so they carry no run_id: join on `node`. A GPU carries its `uuid`.
    """
    newest: dict[tuple[str, str], tuple[str, Sample]] = {}
    for snapshot in snapshots:
        for sample in snapshot.samples.values():
            key = (sample.source, sample.entity)
            if key not in newest or newest[key][1].wall_ns < sample.wall_ns:
                newest[key] = (snapshot.node, sample)
    for node, sample in newest.values():
        labels = {"node": node, "source": sample.source, "entity": sample.entity}
        yield DEVICE_UPDATE, labels, sample.wall_ns / 1e9
        if sample.wall_ns >= oldest_wall_ns and (gpus or sample.source != "nvml"):  # else dcgm-exporter shows them
            who = "uuid" if sample.source == "nvml" else "entity"
            yield from _device_rows({"node": node, **sample.labels, who: sample.entity}, sample)


def _device_rows(labels: dict[str, str], sample: Sample) -> Iterator[Row]:
    for name, value in sample.values.items():
        family, extra = family_and_labels(name)
        yield family, {**labels, **extra}, value
    for name in sample.unsupported:
        yield DEVICE_UNSUPPORTED, {**labels, "signal": name}, 1.0
    for name in sample.failed:
        yield DEVICE_FAILED, {**labels, "signal": name}, 1.0


def health_rows(snapshot: Snapshot) -> Iterator[Row]:
    """Give the sentinel's own figures: one sidecar per node, so they carry only the node."""
    for key, value in snapshot.health.items():
        base, labels = flat_name(key)
        counter = base.endswith("_total")
        name = base[: -len("_total")] if counter else base
        family = _family(f"daemon_{name}", "counter" if counter else "gauge", f"the sidecar itself: {_words(name)}")
        yield family, {"node": snapshot.node, **labels}, float(value)


def _words(name: str) -> str:
    return name.replace("_", " ")
