"""What findings and a snapshot say about an incident: what belongs to it, what was asked for, how its run ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from grpo_sentinel.records import Action, Finding, FindingState, HaltState, Liveness, Severity
from grpo_sentinel.views import HaltStatus, Snapshot


def belongs(finding: Finding, members: Collection[str], findings: Iterable[Finding]) -> bool:
    """By its own id or root, by being the root of a member, or as the same thing flapping."""
    if finding.finding_id in members or (finding.root_id and finding.root_id in members):
        return True
    head = finding.root_id or finding.finding_id
    return any(one.root_id == head or (one.rule, one.subject) == (finding.rule, finding.subject) for one in findings)


def asked_for(snapshot: Snapshot, before: HaltStatus) -> list[Finding]:
    """Evidence that a person asked for, as a finding that opens an incident and is over when it was taken."""
    halt = snapshot.halt
    is_evidence = Action.CAPTURE <= halt.action < Action.CHECKPOINT and halt.request_id
    if not is_evidence or halt == before or halt.requested_by not in ("user", "elsewhere"):
        return []
    what = halt.action.name.lower().replace("_", "-")
    step = halt.step or newest_step(snapshot)
    fired = Finding(
        finding_id=f"asked:{what}:{halt.request_id}", rule="asked", layer="sentinel", severity=Severity.NOTE,
        state=FindingState.FIRING, action=halt.action, run_id=snapshot.run_id, step=step, onset_step=step, ranks=(),
        message=f"{what} asked for: {halt.reason}" if halt.reason else f"{what} asked for",
        wall_ns=halt.requested_wall_ns,
    )  # fmt: skip
    is_over = halt.state in (HaltState.DONE, HaltState.FAILED, HaltState.FINISHED, HaltState.REFUSED)
    done = replace(fired, state=FindingState.RESOLVED, wall_ns=halt.updated_wall_ns)
    return [*([] if before.request_id == halt.request_id else [fired]), *([done] if is_over else [])]


def why_not_captured(requests: Iterable[HaltStatus]) -> str:
    """Say which request for a capture gave way to what; "" when none did, or one after it was done."""
    said = ""
    for halt in requests:
        if halt.action is Action.CAPTURE and halt.state is HaltState.DONE:
            said = ""
        elif halt.action is Action.CAPTURE and halt.detail.startswith("gave way"):
            said = f"request {halt.request_id} (capture) {halt.detail.partition(';')[0]}"
        elif halt.gave_way.partition(")")[0].endswith("(capture"):
            said = halt.gave_way.partition(";")[0]
    return said


def newest_step(snapshot: Snapshot) -> int:
    """The step that the foremost rank works on; 0 before the first."""
    return max((max(one.last_step, one.heartbeat.step) for one in snapshot.ranks.values()), default=0)


def over(snapshot: Snapshot) -> bool:
    """Tell whether every rank has left or died."""
    gone = (Liveness.CLOSED, Liveness.DEAD)
    return bool(snapshot.ranks) and all(status.liveness in gone for status in snapshot.ranks.values())


def ending(snapshot: Snapshot) -> str:
    """Say how the run ended: who died, else what the ranks said when they left."""
    if not over(snapshot):
        return ""
    dead = [str(rank) for rank, status in sorted(snapshot.ranks.items()) if status.liveness is Liveness.DEAD]
    if dead:
        return f"died (rank {', '.join(dead)})"
    said = {status.closed_detail for status in snapshot.ranks.values() if status.closed_detail}
    return f"ended ({'; '.join(sorted(said))})" if said else "ended"


__all__ = ["asked_for", "belongs", "ending", "newest_step", "over", "why_not_captured"]
