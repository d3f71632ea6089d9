"""From fault lines to candidates: what one line means depends on what stands around it."""

from __future__ import annotations

from dataclasses import replace

from grpo_sentinel.diagnosis.thinning import rank_of
from grpo_sentinel.diagnosis.traceback_checks import beside_the_point
from grpo_sentinel.diagnosis.verdict import Candidate, Evidence
from grpo_sentinel.diagnosis.view import LogView
from grpo_sentinel.history.logs.markers import Hit

CONFIDENCE = {"cause": 0.85, "symptom": 0.5, "witness": 0.2}
CONFIDENCE_OF = {"duplicate_gpu": 0.6, "gpu_not_ready": 0.6, "connection_reset": 0.55}
"""Lines that name what happened and leave open whose doing it was: a launch or a placement, an end that is not seen."""

OF_SYMPTOMS = {"memory": 0.75, "communication": 0.6, "gradient": 0.6, "reward": 0.6}
"""A device that ran out of memory is only the victim of what took it, but that memory ran out is sure; ranks that
waited and gradients that were no numbers were the layer in question wherever nothing else was found."""

_WHO_KILLED = ("`dmesg -T | grep -i -E 'killed process|oom'` on that node", "the scheduler's record of the job")

WOULD_DECIDE: dict[str, tuple[str, ...]] = {
    "exit_minus_9": _WHO_KILLED,
    "sigkill": _WHO_KILLED,
    "told_to_end": ("the scheduler's record of the job: time limit, preemption, cancelled by a user",),
    "illegal_access": ("a run with CUDA_LAUNCH_BLOCKING=1, or compute-sanitizer", "`dmesg -T | grep Xid` on that node"),
    "device_assert": ("the assertion's own lines, printed before this one", "a run with CUDA_LAUNCH_BLOCKING=1"),
    "ray_eof": ("the worker's own log in /tmp/ray/session_latest/logs", "`dmesg -T` on that node"),
    "actor_died": ("the worker's own log in /tmp/ray/session_latest/logs", "`dmesg -T` on that node"),
    "segfault": ("a core dump, or faulthandler's stack",),
    "python_error": ("the whole traceback of the rank that failed first",),
    "unhandled_nccl": ("NCCL_DEBUG=INFO, and the log of the rank that ended first",),
    "remote_error": ("the log of the rank that ended first: the others only lost it", "NCCL_DEBUG=INFO on all nodes"),
}  # fmt: skip


def candidates_of_lines(view: LogView) -> list[Candidate]:
    """Give one candidate per kind of fault line found."""
    out = []
    told = beside_the_point(view)
    for name, hits in view.hits.items():
        own = [hit for hit in hits if (hit.line.source, hit.line.number) not in told]
        if not own or own[0].marker.role == "teardown":
            continue
        out.append(_candidate(view, name, own[0], view.hit_counts[name] - len(hits) + len(own)))
    disagreement = ranks_disagree(view)
    if disagreement is not None:
        out.append(disagreement)
    return _absent_rank_named(view, out) + _busy_scoring(out)


_WAITED = ("collective_timeout", "gloo_timeout", "store_wait", "watchdog_stuck")


def _busy_scoring(found: list[Candidate]) -> list[Candidate]:
    """Ranks wait for one that a dump of stacks shows inside a reward function: they wait for that function."""
    stack = next((one for one in found if one.name == "busy_scoring"), None)
    waited = next((one for one in found if one.name in _WAITED), None)
    if stack is None or waited is None:
        return []
    return [
        replace(
            stack, name="scorer_hangs", role="cause", confidence=0.7, says=f"{stack.says}, while others wait for it",
            evidence=(*stack.evidence, *waited.evidence),
        )
    ]  # fmt: skip


def ranks_disagree(view: LogView) -> Candidate | None:
    """The same sequence number with another operation or size on another rank: ranks took different paths."""
    seen: dict[str, Hit] = {}
    for hit in view.hits.get("collective_timeout", ()):
        if "seq" not in hit.groups:
            continue
        other = seen.setdefault(hit.groups["seq"], hit)
        mine, theirs = _what(hit), _what(other)
        if mine != theirs and _rank(hit) != _rank(other):
            return Candidate(
                name="collective_desync", layer="communication", confidence=0.85,
                says=f"ranks {_rank(other)} and {_rank(hit)} called different collectives under one number "
                f"({hit.groups['seq']}): {theirs} against {mine}",
                at=other.line.number / max(view.lines, 1), evidence=(evidence(other), evidence(hit)),
            )  # fmt: skip
    return None


def _what(hit: Hit) -> str:
    return f"{hit.groups.get('op')} of {hit.groups.get('numel_in')}"


def _absent_rank_named(view: LogView, found: list[Candidate]) -> list[Candidate]:
    """Name the one rank that did not report a time-out that all others report: it is the suspect."""
    hits = view.hits.get("collective_timeout", [])
    reported = {rank for hit in hits if (rank := _rank(hit)) is not None}
    world = _world(hits, view)
    absent = sorted(set(range(world)) - reported)
    if not reported or len(absent) != 1:  # those that report only waited: none of them is named
        return [replace(one, rank=None) if one.name in ("collective_timeout", "gloo_timeout") else one for one in found]
    return [
        replace(
            one, rank=absent[0], confidence=0.65, says=f"{one.says}; rank {absent[0]} alone did not report: the suspect"
        )
        if one.name == "collective_timeout"
        else one
        for one in found
    ]


def _world(hits: list[Hit], view: LogView) -> int:
    """Ranks of the job: from an all-gather's sizes, else from the highest rank that any line names."""
    for hit in hits:
        size, total = int(hit.groups.get("numel_in", 0)), int(hit.groups.get("numel_out", 0))
        if "GATHER" in hit.groups.get("op", "") and size and total % size == 0 and 1 < total // size <= 4096:
            return total // size
    return view.max_rank + 1


def _candidate(view: LogView, name: str, hit: Hit, count: int) -> Candidate:
    marker = hit.marker
    says = marker.says
    details = ", ".join(f"{key} {value.strip()}" for key, value in hit.groups.items())
    if details:
        says = f"{says} ({details})"
    if count > 1:
        says = f"{says}, {count} times"
    return Candidate(
        name=name,
        layer=marker.layer,
        role=marker.role,
        confidence=_confidence(hit),
        says=says,
        rank=_rank(hit),
        at=hit.line.number / max(view.lines, 1),
        evidence=(evidence(hit),),
        would_decide=WOULD_DECIDE.get(name, ()),
    )


def _confidence(hit: Hit) -> float:
    marker = hit.marker
    usual = OF_SYMPTOMS.get(marker.layer, 0.5) if marker.role == "symptom" else CONFIDENCE[marker.role]
    if marker.name == "connection_reset" and "nccl" in hit.line.text.lower():
        return usual  # NCCL tells of its own link between two nodes, not of a process that went away
    return CONFIDENCE_OF.get(marker.name, usual)


def evidence(hit: Hit) -> Evidence:
    """Quote the line of a hit."""
    return Evidence(source=hit.line.source, line=hit.line.number, text=hit.line.text.strip()[:300])


def _rank(hit: Hit) -> int | None:
    return rank_of(hit.line.text, hit.line.source)
