"""Chains: of the findings that belong together, the lowest layer that was wrong first is the root.

Order is (onset step, layer), where what a bound decided goes before what a baseline did, whose onset is only about
right: within one step data comes before reward before policy before gradient before optimizer;
between steps time decides, since a bad update of step s shows in the data of step s + 1. A finding joins a chain only
where its layer can follow from the other's, and only within `gap_steps` of it. A note is never the root of more.
An *outcome* - the level of a reward, what KL bought - shows what any layer does, is dated by a sum of small
differences, which may be wrong by a few steps, and so gives way to what was wrong with the samples from about then on.
A rank whose own exception says that its peer had gone comes after all others of its step and the next. An exception
that leaves the trainer comes before the death of its rank.
Of several causes the first is taken, but for one: what became non-finite in the same step explains what follows better
than what has been wrong, and finite, for long.
What is over explains only what begins within a few steps, unless it changed the weights: that stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from grpo_sentinel.catalog import LAYERS
from grpo_sentinel.records import Finding, FindingState, Severity
from grpo_sentinel.rules.exceptions import DEATH, ENDED, EXCEPTION
from grpo_sentinel.rules.lost_peers import TOLD_BY

_TRAINING = ("data", "reward", "policy", "gradient", "optimizer")
FOLLOWS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_TRAINING, (*_TRAINING, "memory", "time", "sentinel")),
    "memory": ("memory", "device", "time", "sentinel"),
    "device": LAYERS,
    "time": ("time", "sentinel"),
    "sentinel": ("sentinel", "time"),
}
"""layer -> layers whose trouble can follow from it."""
_BEFORE_OUTCOMES = ("data", "policy")
"""Layers that decide which samples are scored: prompts, and the policy (or its copy in an engine) that answers."""
_DATED_WITHIN = 3  # steps by which an outcome's onset may be too early
_OVER_WITHIN = 3  # steps for which what is over may still be the cause of what begins: batches are used so long
_PARTED = frozenset({"replicas_differ", "vote_saw_mismatch", "rank_weights_odd"})
"""Rules that see that replicas have parted: within one layer and step they come after what made them part."""
_CHANGED_WEIGHTS = frozenset({
    "weights_nonfinite", "moments_nonfinite", "moments_lost", "lr_off_schedule", "lr_jump", "update_ratio_huge",
    "learning_rate_differs", "optimizer_constants_differ", "clip_limit_differs",
    "update_spike", "decay_too_strong", "nonfinite_updates", "grad_spike", "grad_spike_persists", "grad_spike_damage",
    "grad_norm_overflow", "grad_norm_runaway",
})  # fmt: skip
"""Rules about what was written into weights or the optimizer's state, where it stays after the cause has gone. It leads
to other answers and non-finite numbers, not to what a bound finds wrong with a row of data or a score itself."""


class RootCause:
    """The firing findings and who follows from whom."""

    def __init__(
        self,
        bounds: Iterable[str] = (),
        outcomes: Iterable[str] = (),
        nonfinite: Iterable[str] = (),
        *,
        gap_steps: int = 20,
        linger_steps: int = 20,
    ) -> None:
        """`bounds`: rules that decide without a baseline; within one step they come before those that need one.
        `outcomes`: rules about what training comes to, in which any layer shows; `nonfinite`: those about such numbers.
        """
        self._bounds = frozenset(bounds)
        self._outcomes = frozenset(outcomes)
        self._nonfinite = frozenset(nonfinite)
        self._gap = gap_steps
        self._linger = linger_steps
        self.left_alone: set[int] = set()  # ranks that failed because another one had gone
        self._open: dict[str, Finding] = {}
        self._told_ns: dict[str, int] = {}  # when each was first told; a refined version carries a later time
        self._last_bad: dict[str, Callable[[], int]] = {}  # newest step in which each was so
        self._raised: dict[int, int] = {}  # rank -> step in which an exception left its trainer

    def add(self, finding: Finding, last_bad: Callable[[], int] | None = None) -> tuple[Finding, list[Finding]]:
        """Place a new finding; gives it with its root, and the older findings whose root changed by it.

        `last_bad` gives the newest step in which it was so; without, it is taken to be so until it resolves.
        """
        self._forget(finding.step)
        if last_bad is not None:
            self._last_bad[finding.finding_id] = last_bad
        if finding.rule == EXCEPTION:
            self._raised.update(dict.fromkeys(finding.ranks, finding.onset_step))
        self._told_ns[finding.finding_id] = finding.wall_ns
        roots = [known for known in self._open.values() if self._explains(known, finding)]
        if roots:
            direct = [one for one in roots if one.rule in self._nonfinite and one.onset_step >= finding.onset_step - 1]
            first = min(direct or roots, key=self.order)
            finding = replace(finding, root_id=first.root_id or first.finding_id)
        self._open[finding.finding_id] = finding
        return finding, self._adopt(finding)

    def update(self, finding: Finding) -> Finding:
        """Take a refined or resolved version; it keeps its root."""
        known = self._open.get(finding.finding_id)
        finding = replace(finding, root_id=known.root_id) if known is not None else finding
        self._open[finding.finding_id] = finding
        if finding.state is FindingState.RESOLVED:
            last = self._last_bad.get(finding.finding_id, lambda: finding.step)()
            self._last_bad[finding.finding_id] = lambda: last
        return finding

    def raised(self, ranks: Iterable[int], step: int) -> bool:
        """Tell whether an exception left the trainer of one of these ranks at about this step."""
        return any(abs(step - self._raised[rank]) <= _OVER_WITHIN for rank in ranks if rank in self._raised)

    def get(self, finding_id: str) -> Finding:
        return self._open[finding_id]

    def firing(self) -> tuple[Finding, ...]:
        """All firing findings: each root followed by its chain, graver roots first."""
        firing = [finding for finding in self._open.values() if finding.state is FindingState.FIRING]
        known = {finding.finding_id for finding in firing}
        roots = [finding for finding in firing if finding.root_id not in known]
        roots.sort(key=lambda root: (-self._gravity(root, firing), self.order(root)))
        out: list[Finding] = []
        for root in roots:
            out.append(root)
            out.extend(sorted((f for f in firing if f.root_id == root.finding_id), key=self.order))
        return tuple(out)

    def order(self, finding: Finding) -> tuple[Any, ...]:
        """Sort key of a chain: notes last, then onset, bounds, layer, step, graver, told first.

        Of two ranks that die within one step the one seen dead first took the other along.
        """
        layer = LAYERS.index(_place(finding))
        note = finding.severity is Severity.NOTE
        guess = finding.rule not in self._bounds
        told = self._told_ns.get(finding.finding_id, finding.wall_ns)
        alone = self._is_left_alone(finding)
        return (
            note,
            self._onset(finding),
            alone,
            self._was_announced(finding),
            guess,
            layer,
            finding.rule in _PARTED,
            finding.step,
            -int(finding.severity),
            told,
            finding.finding_id,
        )

    def _is_left_alone(self, finding: Finding) -> bool:
        return finding.rule in TOLD_BY and bool(finding.ranks) and self.left_alone.issuperset(finding.ranks)

    def _onset(self, finding: Finding) -> int:
        """Step in which it began; the one that went may have come a step further than the one that noticed."""
        step = finding.onset_step + self._is_left_alone(finding)
        if self._was_announced(finding):  # it may have been seen last in the step before
            return max([step, *(self._raised[rank] for rank in finding.ranks if rank in self._raised)])
        return step

    def _was_announced(self, finding: Finding) -> bool:
        """Is this a death of which the rank's own exception is the cause?"""
        return finding.rule == DEATH and self.raised(finding.ranks, finding.onset_step)

    def _gravity(self, root: Finding, firing: Iterable[Finding]) -> int:
        return max([int(root.severity)] + [int(f.severity) for f in firing if f.root_id == root.finding_id])

    def _explains(self, cause: Finding, effect: Finding) -> bool:
        if cause.finding_id == effect.finding_id or not _may_follow(cause, effect):
            return False
        if self._gives_way(cause, effect) or not (
            self._gives_way(effect, cause)
            or (self._onset(cause) <= self._onset(effect) and self.order(cause) < self.order(effect))
        ):
            return False
        if _place(effect) == "sentinel" and effect.severity is Severity.NOTE:
            return False  # the sentinel's own small troubles, and what somebody ended, are nobody's consequence
        if cause.severity is Severity.NOTE and effect.severity > Severity.NOTE:
            return False
        if cause.layer in _TRAINING and self._is_over(cause, effect):
            return False
        near = effect.onset_step - max(cause.onset_step, cause.step) <= self._gap
        return near or (cause.state is FindingState.FIRING and effect.onset_step - cause.onset_step <= 3 * self._gap)

    def _is_over(self, cause: Finding, effect: Finding) -> bool:
        """Was the first no longer so, and left nothing behind, when the second began?"""
        last = self._last_bad.get(cause.finding_id)
        quiet = 0 if last is None else effect.onset_step - last()
        itself = effect.rule in self._bounds and effect.layer in ("data", "reward")
        if itself and LAYERS.index(effect.layer) < LAYERS.index(cause.layer):
            return quiet > 1  # back through the weights it comes with the next batch
        return cause.state is FindingState.RESOLVED and quiet > _OVER_WITHIN and cause.rule not in _CHANGED_WEIGHTS

    def _gives_way(self, outcome: Finding, other: Finding) -> bool:
        """Is the first an outcome that the second, of the samples, may well have begun before?"""
        return (
            outcome.rule in self._outcomes
            and other.rule not in self._outcomes
            and other.layer in _BEFORE_OUTCOMES
            and other.severity >= outcome.severity
            and self._onset(other) <= self._onset(outcome) + _DATED_WITHIN
        )

    def _adopt(self, root: Finding) -> list[Finding]:
        """Hang those that this finding explains under its root: they came in before their cause was known."""
        head = root.root_id or root.finding_id
        moved = {f.finding_id for f in self._open.values() if not f.root_id and f.finding_id != head}
        moved = {name for name in moved if self._explains(root, self._open[name])}
        changed = []
        for name, finding in list(self._open.items()):
            if name in moved or finding.root_id in moved:
                self._open[name] = replace(finding, root_id=head)
                if finding.state is FindingState.FIRING:
                    changed.append(self._open[name])
        return changed

    def _forget(self, step: int) -> None:
        for name, finding in list(self._open.items()):
            if finding.state is FindingState.RESOLVED and finding.step < step - self._linger:
                del self._open[name]
                self._told_ns.pop(name, None)
                self._last_bad.pop(name, None)


def _place(finding: Finding) -> str:
    """Give the layer that orders a finding within its step: whatever phase an exception ended, it is the last link.

    Not that of a reward function, which is the user's own code and seldom fails because of what came before.
    """
    last = finding.rule == ENDED or (finding.rule == EXCEPTION and finding.layer != "reward")
    return "sentinel" if last else finding.layer


def _may_follow(cause: Finding, effect: Finding) -> bool:
    """Can trouble of the one's layer lead to the other's? An exception follows from any, wherever it was raised."""
    follows = FOLLOWS[cause.layer]
    return effect.layer in follows or (effect.rule == EXCEPTION and "sentinel" in follows)
