"""The rules engine: frames, events, samples and ticks with their time in, findings out. No clock, no I/O.

    frame(step) ─▶ views (merged, per rank) ─▶ trackers, bounds first ─┐
    event, sample, tick ─▶ views of their own ─▶ trackers ─────────────┼─▶ findings ─▶ root cause ─▶ out

A finding goes out when it fires, when it is refined (same `finding_id`, still firing: its rank, parameter or root
became known) and when it resolves. Whoever stores findings keeps the newest version of each id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from grpo_sentinel.catalog import split_name
from grpo_sentinel.records import EventRecord, Finding, FindingState, Frame, Mode, Sample
from grpo_sentinel.rules import profiles
from grpo_sentinel.rules.attribution import NAMING, Attribution
from grpo_sentinel.rules.board import Board, layout_of
from grpo_sentinel.rules.exceptions import DEATH, EXCEPTION, advice_on_death, layer_of, world_size
from grpo_sentinel.rules.lost_peers import tells_of_a_lost_peer
from grpo_sentinel.rules.message import write
from grpo_sentinel.rules.phase_past import PhasePast
from grpo_sentinel.rules.root_cause import RootCause
from grpo_sentinel.rules.rule import Rule, RuleSet
from grpo_sentinel.rules.tracker import Change, Tracker
from grpo_sentinel.rules.view import RankState, View, merged_get

_NONE = Change.NONE
_EMPTY: Mapping[Any, Any] = MappingProxyType({})
_CHECKPOINTS = 64  # newest that are kept
_STALE_LOOKS = 50  # a tracker that could not judge for so many looks abstains


class Engine:
    """Runs a rule set over one run. Constant cost and memory per record."""

    def __init__(self, rules: RuleSet, *, run_id: str, anonymous: bool = False) -> None:
        """`anonymous`: a trainer's own log, whose one row a step is no rank's but the job's, so that none is named."""
        self._anonymous = anonymous
        self._given = rules
        self._run_id = run_id
        self._trackers: dict[tuple[str, str, int | None, str], Tracker] = {}
        self._boards: dict[Mode, Board] = {}
        self._roots = _chains(rules)
        self._attribution = Attribution()
        self._phases = PhasePast()
        self._context: dict[str, Any] = {}
        self._step = 0
        self._checkpoints: deque[tuple[int, str]] = deque(maxlen=_CHECKPOINTS)
        self._errors: dict[str, str] = {}
        self.profile_names: tuple[str, ...] = ()
        self._off: dict[str, str] = {}
        self._choose()  # profiles named by hand hold from the start; `auto` needs a configuration to read

    # ---- inputs

    def configure(self, context: Mapping[str, Any]) -> None:
        """Take the trainer's configuration and pick the profiles; only rules that it changes start anew."""
        if dict(context) == self._context:
            return
        self._context = dict(context)
        self._choose()

    def _choose(self) -> None:
        chosen = profiles.choose(self._given, self._context)
        changed, off = profiles.apply(self._given, chosen)
        self.profile_names = tuple(profile.name for profile in chosen)
        self._off = off
        self._set_rules(changed)

    def begin_anew(self) -> list[Finding]:
        """Forget the run so far, which was started again by new processes; gives what fired, as resolved then."""
        fired = self._roots.firing()
        gone = [replace(finding, state=FindingState.RESOLVED, wall_ns=finding.wall_ns + 1) for finding in fired]
        self._trackers.clear()
        self._boards.clear()
        self._roots = _chains(self._given)
        self._attribution = Attribution()
        self._phases = PhasePast()
        self._step = 0
        return gone

    def keep_baselines(self) -> None:
        """Go on as another run that was resumed from this one: levels are kept, findings and evidence are not."""
        for key, tracker in list(self._trackers.items()):
            if _counts_faults(tracker.rule.detect):
                del self._trackers[key]
            else:
                tracker.rest()
        for board in self._boards.values():
            board.clear()
        self._roots = _chains(self._given)
        self._attribution = Attribution()
        self._phases = PhasePast()
        self._step = 0

    def frame(self, frame: Frame) -> list[Finding]:
        """Judge one step of all ranks."""
        if not frame.ranks:
            return []
        if frame.mode is Mode.TRAIN:
            self._step = max(self._step, frame.step)
        named = self._attribution.frame(frame)
        self._phases.frame(frame)
        rows = frame.ranks
        board = self._board(frame.mode)
        board.looks += 1
        plan = board.planned(layout_of(rows))
        if plan is None and board.grow(rows):
            self._assign(board, frame.mode)
        merged = View(frame.step, frame.wall_ns, merged_get(rows), rows, None, frame.missing, False, _EMPTY, _EMPTY)
        views: dict[int | None, View] = {None: merged}
        if plan is None or plan.by_rank:
            for rank, row in rows.items():
                views[rank] = View(frame.step, frame.wall_ns, row.get, rows, rank, frame.missing, False, _EMPTY, _EMPTY)
        out: list[Finding] = []
        first = plan.bounds.due(merged.get, rows.values()) if plan is not None else board.bounds
        if self._run(first, views, board.looks, out):
            for view in views.values():
                view.tainted = True
        second = plan.others.due(merged.get, rows.values()) if plan is not None else board.others
        self._run(second, views, board.looks, out)
        if plan is None:
            board.make_plan(rows)  # now that all have looked, who could not judge has said why
        else:
            plan.bounds.after(first)
            plan.others.after(second)
        if named:
            self._refine(frame.wall_ns, out)
        return out

    def _run(
        self, trackers: Iterable[Tracker], views: Mapping[int | None, View], number: int, out: list[Finding]
    ) -> bool:
        """Let every tracker look at its view; tells whether one of them finds it bad."""
        any_bad = False
        for tracker in trackers:
            view = views.get(tracker.rank)
            if view is None:
                continue
            try:
                change = tracker.look(view, number)
            except Exception as error:  # noqa: BLE001 - one broken rule must not stop the others
                self._fail(tracker, view, error)
                continue
            if change is not _NONE:
                self._change(tracker, change, view, out, "")
            if tracker.bad:
                any_bad = True
        return any_bad

    def event(self, event: EventRecord) -> list[Finding]:
        """Judge one event; a `config` event configures, a `nonfinite` event refines findings that already fire."""
        if event.kind == "config" and event.rank == 0:
            self.configure(event.body)
        if event.kind == "checkpoint":
            self._checkpoints.append((_whole(event.body.get("step"), event.step), str(event.body.get("path", ""))))
        self._attribution.event(event)
        if event.kind == "exception" and tells_of_a_lost_peer(event.body):
            self._roots.left_alone.add(event.rank)
        out: list[Finding] = []
        step = max(event.step, 1) if event.step else self._step
        view = View(step, event.wall_ns, _nothing, rank=event.rank, event=event.body, event_kind=event.kind)
        for rule in self._by_scope["event"]:
            rank = event.rank if rule.name == EXCEPTION else None  # each rank's own counts: one tells of another's
            self._look(self._tracker(rule, "event", rank, ""), view, out)
        if event.kind in ("nonfinite", *NAMING):
            self._refine(event.wall_ns, out)
        return out

    def sample(self, sample: Sample) -> list[Finding]:
        """Judge one reading of a GPU or host, apart for every entity."""
        out: list[Finding] = []
        view = View(self._step, sample.wall_ns, sample.values.get)
        labels: dict[str, set[str]] = {}
        for rule in self._by_scope["sample"]:
            if any("[*]" in name for name in self._signals[rule.name]):
                labels = labels or _labels(sample.values)
                for label in _labels_for(self._signals[rule.name], labels):
                    self._look(self._tracker(rule, sample.entity, None, label), view, out)
            elif any(name in sample.values for name in self._signals[rule.name]):
                self._look(self._tracker(rule, sample.entity, None, ""), view, out, subject=sample.entity)
        return out

    def tick(self, wall_ns: int, ranks: Mapping[int, RankState]) -> list[Finding]:
        """Judge silence, death and lateness at one moment."""
        out: list[Finding] = []
        for rank in ranks:
            step = ranks[rank].heartbeat.step or self._step
            past, alone = self._phases.of(rank), self._roots.left_alone
            view = View(step, wall_ns, _nothing, rank=rank, states=ranks, past=past, left_alone=alone)
            for rule in self._by_scope["tick"]:
                self._look(self._tracker(rule, "tick", rank, ""), view, out)
        return out

    # ---- outputs

    def active(self) -> tuple[Finding, ...]:
        """Everything that fires now: each root followed by its chain, graver roots first."""
        return self._roots.firing()

    def abstaining(self) -> dict[str, str]:
        """Say for every rule that cannot judge why: no signal, no baseline yet, switched off, does not apply."""
        for board in self._boards.values():
            board.settle()
        out: dict[str, str] = {}
        by_rule: dict[str, list[Tracker]] = {}
        for tracker in self._trackers.values():
            by_rule.setdefault(tracker.rule.name, []).append(tracker)
        for rule in self._rules:
            if rule.name in self._off:
                out[rule.name] = self._off[rule.name]
            elif not rule.enabled:
                out[rule.name] = "switched off in the configuration"
            elif rule.name in self._errors:
                out[rule.name] = self._errors[rule.name]
            elif rule.name not in by_rule:
                out[rule.name] = _unasked(rule.scope, self._signals[rule.name])
            else:
                reason = _silent(by_rule[rule.name])
                if reason:
                    out[rule.name] = reason
        return out

    @property
    def checkpoints(self) -> tuple[tuple[int, str], ...]:
        """Step and path of the checkpoints that events told of, oldest first."""
        return tuple(self._checkpoints)

    @property
    def rules(self) -> RuleSet:
        """The rules as they run now, profiles applied."""
        return self._rules

    # ---- inside

    def _set_rules(self, rules: RuleSet) -> None:
        self._rules = rules
        live = {rule.name: rule for rule in rules if rule.enabled and rule.name not in self._off}
        for key, tracker in list(self._trackers.items()):
            if live.get(key[0]) != tracker.rule:
                del self._trackers[key]
        for board in self._boards.values():
            board.clear()
        self._signals = {rule.name: rule.signals for rule in rules}  # parsing them is not for every look
        scopes = ("merged", "rank", "sample", "event", "tick")
        self._by_scope = {scope: [rule for rule in live.values() if rule.scope == scope] for scope in scopes}

    def _tracker(self, rule: Rule, place: str, rank: int | None, label: str) -> Tracker:
        key = (rule.name, place, rank, label)
        tracker = self._trackers.get(key)
        if tracker is None:
            tracker = self._trackers[key] = Tracker(rule, label, rank, evaluates=place == Mode.EVALUATION.name)
        return tracker

    def _board(self, mode: Mode) -> Board:
        board = self._boards.get(mode)
        if board is None:
            board = self._boards[mode] = Board()
        return board

    def _assign(self, board: Board, mode: Mode) -> None:
        """Give a board its trackers; done anew only when a signal or rank is seen for the first time."""
        wanted = ("any", "train" if mode is Mode.TRAIN else "evaluation")
        labels = _labels(board.known)
        board.bounds, board.others = [], []
        for rule in (*self._by_scope["merged"], *self._by_scope["rank"]):
            if rule.mode not in wanted:
                continue
            target = board.bounds if rule.bound else board.others
            for label in _labels_for(self._signals[rule.name], labels):
                names = [name.replace("[*]", f"[{label}]") for name in self._signals[rule.name]]
                if names and not any(name in board.known for name in names):
                    continue
                for rank in sorted(board.ranks) if rule.scope == "rank" else [None]:
                    target.append(self._tracker(rule, mode.name, rank, label))

    def _look(self, tracker: Tracker, view: View, out: list[Finding], subject: str = "") -> None:
        try:
            change = tracker.look(view)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(tracker, view, error)
            return
        if change is not Change.NONE:
            self._change(tracker, change, view, out, subject)

    def _fail(self, tracker: Tracker, view: View, error: Exception) -> None:
        """Note that a rule met numbers that it cannot handle; it must not stop the others."""
        self._errors[tracker.rule.name] = f"failed at step {view.step}: {error}"

    def _change(self, tracker: Tracker, change: Change, view: View, out: list[Finding], subject: str) -> None:
        if change is Change.FIRED:
            self._fire(tracker, view, out, subject)
        elif tracker.finding is not None:
            known = self._roots.get(tracker.finding.finding_id)
            tracker.finding = None
            gone = replace(known, state=FindingState.RESOLVED, step=view.step, wall_ns=view.wall_ns)
            out.append(self._roots.update(gone))

    def _fire(self, tracker: Tracker, view: View, out: list[Finding], entity: str) -> None:
        rule, verdict, onset = tracker.rule, tracker.verdict, tracker.onset
        ranks = verdict.ranks or ((tracker.rank,) if tracker.rank is not None else self._blamed(tracker, view))
        subject = verdict.subject or tracker.label or entity
        if rule.attribution:
            culprit = self._attribution.culprit(onset, rule.attribution)
            says = 0 < len(ranks) < len(view.ranks) or len(view.ranks) == 1 or rule.attribution != "nonfinite"
            ranks = culprit.ranks or (ranks if says else ())
            subject = ", ".join(culprit.names) or subject
        subject = subject or self._attribution.behind(self._signals[rule.name], onset)
        if self._anonymous and len(view.ranks) == 1:  # an event says by itself whose it is
            ranks = ()
        why, remedies = rule.why, rule.remedies
        if rule.name == DEATH:
            alone, raised = world_size(view.states.values()) == 1, self._roots.raised(ranks, onset)
            why, remedies = advice_on_death(why, remedies, alone=alone, raised=raised)
        finding = Finding(
            finding_id=_name(tracker, entity, ranks),
            rule=rule.name,
            layer=layer_of(rule.layer, view.event_kind, view.event),
            severity=rule.severity,
            state=FindingState.FIRING,
            action=rule.action,
            run_id=self._run_id,
            step=view.step,
            onset_step=onset,
            ranks=ranks,
            subject=subject,
            signal=verdict.signal,
            value=verdict.value,
            limit=verdict.limit,
            message=_said(tracker, view.step, onset, ranks, subject),
            why=why,
            remedies=remedies,
            reference=rule.see,
            wall_ns=view.wall_ns,
        )
        placed, moved = self._roots.add(finding, lambda: tracker.last_bad)
        tracker.finding = placed
        out.append(placed)
        out.extend(moved)

    def _blamed(self, tracker: Tracker, view: View) -> tuple[int, ...]:
        """Ranks whose own values break the rule; nobody when all do and the signal is the same on all."""
        ranks = tuple(rank for rank, row in view.ranks.items() if tracker.blames(row.get))
        if len(ranks) == len(view.ranks) and len(ranks) > 1 and tracker.rule.attribution == "nonfinite":
            return ()
        return tuple(sorted(ranks))

    def _refine(self, wall_ns: int, out: list[Finding]) -> None:
        """Give findings that already fire the rank, parameter or sample that has just been named."""
        for tracker in self._trackers.values():
            if tracker.finding is None:
                continue
            known = self._roots.get(tracker.finding.finding_id)
            ranks, subject = known.ranks, known.subject
            if tracker.rule.attribution:
                culprit = self._attribution.culprit(known.onset_step, tracker.rule.attribution)
                ranks, subject = culprit.ranks or ranks, ", ".join(culprit.names) or subject
            subject = subject or self._attribution.behind(self._signals[tracker.rule.name], known.onset_step)
            if (ranks, subject) == (known.ranks, known.subject):
                continue
            text = _said(tracker, known.step, known.onset_step, ranks, subject)
            out.append(self._roots.update(replace(known, ranks=ranks, subject=subject, message=text, wall_ns=wall_ns)))


_NONFINITE = ("_nonfinite", "_infinite")
"""How rules about NaN and infinity are named; the kind `nonfinite` of a detector counts other things too."""


def _chains(rules: RuleSet) -> RootCause:
    """Begin without a finding."""
    return RootCause(
        bounds=(rule.name for rule in rules if rule.bound),
        outcomes=(rule.name for rule in rules if rule.outcome),
        nonfinite=(rule.name for rule in rules if rule.name.endswith(_NONFINITE)),
    )


def _name(tracker: Tracker, entity: str, ranks: tuple[int, ...]) -> str:
    """Name a finding, apart from those of other ranks, labels, devices, and of evaluation at the same step."""
    own = "" if tracker.rank is None else str(tracker.rank)
    who = "/".join(filter(None, (tracker.label, entity, own))) if tracker.label else entity
    where = ":evaluation" if tracker.evaluates else ""
    return f"{tracker.rule.name}:{who or ','.join(map(str, ranks)) or 'all'}:{tracker.onset}{where}"


def _said(tracker: Tracker, step: int, onset: int, ranks: tuple[int, ...], subject: str) -> str:
    text = write(tracker.rule, tracker.verdict, step=step, onset=onset, ranks=ranks, subject=subject)
    return f"in evaluation: {text}" if tracker.evaluates else text


def _nothing(name: str) -> float | None:
    return None


def _labels(names: Iterable[str]) -> dict[str, set[str]]:
    """Labels of every dimension that occurs: `{"reward.func_mean": {"accuracy", "format"}}`."""
    out: dict[str, set[str]] = {}
    for name in names:
        base, label = split_name(name)
        if label:
            out.setdefault(base, set()).add(label)
    return out


def _labels_for(signals: Iterable[str], labels: Mapping[str, set[str]]) -> list[str]:
    """Labels that a rule runs for: "" for a rule without `[*]`."""
    bases = [name[: -len("[*]")] for name in signals if name.endswith("[*]")]
    if not bases:
        return [""]
    return sorted(set().union(*(labels.get(base, set()) for base in bases)))


def _counts_faults(spec: Any) -> bool:
    """Does a detector remember faults themselves, not the levels that tell them?"""
    if isinstance(spec, Mapping):
        return spec.get("kind") in ("count", "recent", "share") or any(map(_counts_faults, spec.values()))
    return isinstance(spec, list) and any(map(_counts_faults, spec))


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _unasked(scope: str, signals: Iterable[str]) -> str:
    """Why nobody has asked a rule so far."""
    if scope in ("tick", "event"):
        return "no heartbeat so far" if scope == "tick" else "no event so far"
    return f"no value of {', '.join(signals)} so far" if signals else "no step so far"


def _silent(trackers: Iterable[Tracker]) -> str:
    reason = ""
    for tracker in trackers:
        if not tracker.last_unable or (tracker.judged and tracker.looks - tracker.judged < _STALE_LOOKS):
            return ""
        reason = reason or tracker.last_unable
    return reason
