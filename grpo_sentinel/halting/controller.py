"""Turns findings and commands into one request at a time and follows it to its end.

                    write control            acks of all ranks
    NONE ──▶ REQUESTED ──▶ VOTED ──▶ CHECKPOINTING ──▶ DONE | FAILED | FINISHED | REFUSED ──▶ the next may come
                 │            │            │
                 └── overdue ─┴────────────┴──▶ escalation (stacks, SIGTERM to the launcher, SIGKILL if configured)

Evidence (`halting.evidence`) goes the same way, gives way to a checkpoint or halt, and is given up when it is overdue.
What a person asked for and gave way is asked for again when the other has ended and the run goes on.

Ids increase over the life of the run and survive a restart of the daemon, which goes on with the request it finds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_sentinel.clock import Clock
from grpo_sentinel.config import HaltingConfig
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.halting import journal
from grpo_sentinel.halting.elsewhere import ELSEWHERE, purpose_of
from grpo_sentinel.halting.escalation import Escalation, TakeStacks
from grpo_sentinel.halting.evidence import EVIDENCE, IN_TRAINER, Budget, strongest
from grpo_sentinel.halting.launcher import LauncherHandle
from grpo_sentinel.halting.progress import TERMINAL, begun_ns, progress_of
from grpo_sentinel.protocol import ControlReader, write_control
from grpo_sentinel.records import Action, ControlWord, EventRecord, Finding, FindingState, HaltState
from grpo_sentinel.views import HaltStatus, RankStatus

HALTING = frozenset({Action.CHECKPOINT_AND_HALT, Action.HALT_NOW})
_REMEMBERED = 64  # votes whose purpose is kept
_GIVE_UP_SECONDS = 60.0  # after the last step of an escalation
_MOST_PASSED = 16  # ends of requests that nobody has fetched


class HaltRefused(SentinelError):
    """A request cannot be made now; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """A request that is not written yet."""

    action: Action
    reason: str
    requested_by: str
    by_rule: bool
    step: int = 0
    finding_ids: tuple[str, ...] = ()


class HaltController:
    """Owns the control file of one run; used from the daemon's loop only."""

    def __init__(
        self,
        directory: Path,
        config: HaltingConfig,
        clock: Clock,
        launcher: LauncherHandle | None = None,
        *,
        skip_above_norm: float = math.inf,
        take_stacks: TakeStacks | None = None,
    ) -> None:
        """Take up the request found in `directory`, if any. Raises nothing for a missing or torn control file."""
        self._directory = directory
        self._config = config
        self._clock = clock
        self._launcher = launcher
        self._take_stacks = take_stacks
        self._bound = skip_above_norm
        self.status = HaltStatus()
        self._passed: deque[HaltStatus] = deque(maxlen=_MOST_PASSED)
        self._waiting: _Wish | None = None
        self._again: _Wish | None = None  # evidence that gave way, asked for by a person
        self._acted_ns = 0  # when the ranks began to act: the checkpoint's own deadline counts from here
        self._escalation = self._new_escalation(0, 0)
        self._served: set[str] = set()
        self._budget = Budget(clock, config.max_requests, config.cooldown_seconds)
        self._evidence_budget = Budget(clock, config.max_evidence, config.evidence_cooldown_seconds)
        self._ranks: Mapping[int, RankStatus] = {}
        self._begun_ns = 0  # when the ranks that live now attached
        self._asking = False  # the control file holds a request that trainers may still take up
        self._elsewhere: dict[tuple[int, int], tuple[Action, str]] = {}  # (id, step) of a vote -> what it was about
        self._take_up()
        if math.isfinite(skip_above_norm) and not self.status.request_id:
            write_control(directory, ControlWord(request_id=0, skip_above_norm=skip_above_norm))

    def _new_escalation(self, request_id: int, since_ns: int) -> Escalation:
        return Escalation(self._config, self._launcher, self._take_stacks, self._directory, request_id, since_ns)

    def _take_up(self) -> None:
        """Go on where an earlier daemon, or a command without one, left off."""
        past = journal.load(self._directory)
        self._count(past)
        reader = ControlReader(self._directory)
        word = reader.read()
        reader.close()
        if word is None or not word.request_id:
            self._last_id = past[-1].request_id if past else 0
            return
        self._last_id = max(word.request_id, past[-1].request_id if past else 0)
        self._asking = word.action >= Action.CHECKPOINT or word.action in IN_TRAINER
        if not self._asking:
            return
        made_ns = next((entry.wall_ns for entry in past if entry.request_id == word.request_id), None)
        if made_ns is None:
            made_ns = word.deadline_wall_ns - round(self._config.acknowledge_seconds * 1e9)
        self.status = HaltStatus(
            request_id=word.request_id,
            state=HaltState.REQUESTED,
            action=word.action,
            reason=word.reason,
            requested_by=word.requested_by,
            requested_wall_ns=made_ns,
            updated_wall_ns=made_ns,
        )
        self._escalation = self._new_escalation(word.request_id, made_ns)

    def _count(self, past: Sequence[journal.Entry]) -> None:
        """Charge earlier requests to the budget, and remember the findings that they served."""
        self._served = {finding_id for entry in past for finding_id in entry.finding_ids}
        self._budget.charge(entry for entry in past if entry.action not in EVIDENCE)
        self._evidence_budget.charge(entry for entry in past if entry.action in EVIDENCE)

    def _begin_anew(self, ranks: Mapping[int, RankStatus]) -> None:
        """Forget what was asked of earlier ranks when the run was started again under its name, say after a halt."""
        begun = begun_ns(ranks)
        if begun <= self._begun_ns:
            return
        self._begun_ns = begun
        self._count([entry for entry in journal.load(self._directory) if entry.wall_ns >= begun])
        if 0 < self.status.requested_wall_ns < begun:
            self.status = HaltStatus(pinned_checkpoint=self.status.pinned_checkpoint, updated_wall_ns=begun)
            self._waiting = self._again = None

    def _withdraw(self) -> None:
        """Take a request that has ended out of the control file: nobody may take it up late. Ids go on from it."""
        write_control(self._directory, ControlWord(request_id=self._last_id, skip_above_norm=self._bound))
        self._asking = False

    @property
    def open(self) -> bool:
        """Tell whether a request is under way."""
        return self.status.state is not HaltState.NONE and self.status.state not in TERMINAL

    @property
    def halted(self) -> bool:
        """Tell whether the run has been halted on request."""
        return self.status.state is HaltState.DONE and self.status.action in HALTING

    def consider(self, findings: Sequence[Finding]) -> None:
        """Let firing findings ask for what their rules say; the strongest action wins, of equals a root cause.

        Each finding asks once, unless its request failed. Cooldown, budget, dry run and the switch apply here and
        not to a person's request.
        """
        asking = [
            finding
            for finding in findings
            if finding.state is FindingState.FIRING
            and finding.action >= Action.CAPTURE
            and finding.finding_id not in self._served
            and finding.wall_ns >= self._begun_ns
        ]
        if not asking or not self._config.enabled or self.halted or self.status.state is HaltState.FINISHED:
            return
        best = strongest(asking)
        if best.action in EVIDENCE and (self.open or self._config.dry_run or not self._evidence_budget.allows()):
            return  # what fires on asks again
        wish = _Wish(
            action=best.action,
            reason=best.message,
            requested_by=best.rule,
            by_rule=True,
            step=best.step,
            finding_ids=tuple(finding.finding_id for finding in asking if finding.action <= best.action),
        )
        if self._occupied_for(wish.action):
            self._wait_with(wish)
        elif wish.action in EVIDENCE or self._budget.allows():
            self._make(wish)

    def _occupied_for(self, action: Action) -> bool:
        """Tell whether a request under way must end first; evidence gives way to what saves or stops the run."""
        return self.open and not (self.status.action in EVIDENCE and action not in EVIDENCE)

    def request(self, action: Action, reason: str, requested_by: str = "user") -> int:
        """Ask for `action` on behalf of a person and give the request's id.

        While a request at least as strong is under way that one's id is given; a stronger wish is made when the
        weaker one has ended. Raises `HaltRefused` for an action that no trainer can carry out, `SegmentError` when
        the control file cannot be written.
        """
        if action < Action.CAPTURE:
            raise HaltRefused(f"a run cannot be asked for {action.name.lower()}: ask for checkpoint, halt or evidence")
        if self.halted:
            raise HaltRefused(f"the run has already been halted at step {self.status.step}; start it again to go on")
        wish = _Wish(action=action, reason=reason, requested_by=requested_by, by_rule=False)
        if action is Action.STACKS or not self._occupied_for(action):
            return self._make(wish)
        if action == self.status.action or (action < self.status.action and action not in EVIDENCE):
            return self.status.request_id
        if action in EVIDENCE:
            under_way = f"request {self.status.request_id} ({_word(self.status.action)})"
            raise HaltRefused(f"{under_way} is under way; ask again when it is done")
        self._wait_with(wish)
        return self._last_id + 1

    def _wait_with(self, wish: _Wish) -> None:
        """Remember the strongest wish that exceeds the request under way."""
        if wish.action > self.status.action and (self._waiting is None or wish.action > self._waiting.action):
            self._waiting = wish

    def _make(self, wish: _Wish) -> int:
        now = self._clock.wall_ns()
        self._served.update(wish.finding_ids)
        if wish.by_rule:
            (self._evidence_budget if wish.action in EVIDENCE else self._budget).take()
            if self._config.dry_run:
                self._say_dry(wish, now)
                return 0
        request_id = self._last_id + 1
        if wish.action is Action.STACKS:
            return self._take_stacks_now(wish, request_id, now)
        gave_way = self._supersede(wish, request_id, now)
        word = ControlWord(
            request_id=request_id,
            action=wish.action,
            deadline_wall_ns=now + round(self._config.acknowledge_seconds * 1e9),
            reason=wish.reason,
            requested_by=wish.requested_by,
            made_wall_ns=now,
            skip_above_norm=self._bound,
        )
        write_control(self._directory, word)
        self._asking = True
        self._last_id = request_id
        self._escalation = self._new_escalation(request_id, now)
        self._acted_ns = 0
        self.status = HaltStatus(
            request_id=request_id,
            state=HaltState.REQUESTED,
            action=wish.action,
            reason=wish.reason,
            requested_by=wish.requested_by,
            requested_wall_ns=now,
            updated_wall_ns=now,
            pinned_checkpoint=self.status.pinned_checkpoint,
            gave_way=gave_way,
        )
        self._note(wish, request_id, now)
        return request_id

    def _supersede(self, wish: _Wish, request_id: int, now: int) -> str:
        """Keep how the request before ended for who publishes it, and say so when it has to give way to this one."""
        before = self.status
        if not before.request_id:
            return ""
        if not self.open:
            self._passed.append(before)
            return ""
        made = [entry for entry in journal.load(self._directory) if entry.request_id == before.request_id]
        by_person = bool(made) and not made[-1].by_rule
        if made and made[-1].by_rule:
            self._served.difference_update(made[-1].finding_ids)  # what fires on asks again
        again = by_person and wish.action not in HALTING
        if again:
            self._again = _Wish(
                action=before.action, reason=before.reason, requested_by=before.requested_by, by_rule=False
            )
        detail = f"gave way to request {request_id} ({_word(wish.action)})"
        if again:
            detail += "; asked for again when that has ended"
        self._passed.append(replace(before, state=HaltState.FAILED, detail=detail, updated_wall_ns=now))
        return f"request {before.request_id} ({_word(before.action)}) {detail}"

    def passed(self) -> list[HaltStatus]:
        """Give the ends of requests that another has replaced in `status`, each once, oldest first."""
        out = list(self._passed)
        self._passed.clear()
        return out

    def _take_stacks_now(self, wish: _Wish, request_id: int, now: int) -> int:
        """Take the stacks of all ranks of this node: no rank needs to be able to answer."""
        if self._take_stacks is None:
            raise HaltRefused("no sidecar watches this run: stacks are taken by the sidecar; start `grpo-sentinel run`")
        path = self._take_stacks([status.identity for status in self._ranks.values()], wish.reason)
        self._note(wish, request_id, now)
        if self.open:
            return self.status.request_id  # the request under way keeps the status
        self._last_id = request_id
        if self.status.request_id:
            self._passed.append(self.status)
        self.status = HaltStatus(
            request_id=request_id,
            state=HaltState.DONE,
            action=wish.action,
            reason=wish.reason,
            requested_by=wish.requested_by,
            detail=path,
            requested_wall_ns=now,
            updated_wall_ns=now,
            pinned_checkpoint=self.status.pinned_checkpoint,
        )
        return request_id

    def _note(self, wish: _Wish, request_id: int, now: int) -> None:
        entry = journal.Entry(
            request_id=request_id,
            action=wish.action,
            reason=wish.reason,
            requested_by=wish.requested_by,
            by_rule=wish.by_rule,
            wall_ns=now,
            finding_ids=wish.finding_ids,
        )
        try:
            journal.append(self._directory, entry)
        except OSError:  # the request stands; only cooldown and budget would not survive a restart
            return

    def _say_dry(self, wish: _Wish, now: int) -> None:
        verb = "halted" if wish.action in HALTING else "saved a checkpoint"
        self.status = HaltStatus(
            state=HaltState.NONE,
            action=wish.action,
            reason=wish.reason,
            requested_by=wish.requested_by,
            step=wish.step,
            detail=f"dry run: would have {verb} at step {wish.step}",
            requested_wall_ns=now,
            updated_wall_ns=now,
            pinned_checkpoint=self.status.pinned_checkpoint,
            dry_run=True,
        )

    def observe(self, events: Sequence[EventRecord]) -> None:
        """Learn from the ranks' `halt` events what a request made elsewhere asks for."""
        for event in events:
            name = str(event.body.get("action", "")).upper()
            if event.kind == "halt" and name in Action.__members__:
                number = event.body.get("request_id")
                key = number if isinstance(number, int) else 0, event.step
                self._elsewhere[key] = Action[name], str(event.body.get("reason") or ELSEWHERE)
                while len(self._elsewhere) > _REMEMBERED:
                    del self._elsewhere[next(iter(self._elsewhere))]

    def pinned(self, path: str) -> None:
        """Remember which checkpoint was kept."""
        self.status = replace(self.status, pinned_checkpoint=path, updated_wall_ns=self._clock.wall_ns())

    def poll(self, ranks: Mapping[int, RankStatus]) -> HaltStatus:
        """Follow the request under way, escalate when it is overdue, start what waited; gives the status."""
        self._ranks = ranks
        self._begin_anew(ranks)
        if not self.open:
            self._adopt(ranks)
        if self.open:
            self._follow(ranks)
        if self._asking and not self.open:
            self._withdraw()
        if not self.open and (self._waiting is not None or self._again is not None):
            wish = self._next()
            if wish is not None and not self.halted and self.status.state is not HaltState.FINISHED:
                self._make(wish)
        return self.status

    def _next(self) -> _Wish | None:
        """Take what waits: what saves or stops the run first, then evidence that gave way."""
        if self._waiting is None:
            wish, self._again = self._again, None
        else:
            wish, self._waiting = self._waiting, None
        return wish

    def _follow(self, ranks: Mapping[int, RankStatus]) -> None:
        now = self._clock.wall_ns()
        found = progress_of(self.status.request_id, self.status.requested_wall_ns, ranks)
        if found.state in (HaltState.VOTED, HaltState.CHECKPOINTING) and not self._acted_ns:
            self._acted_ns = found.wall_ns or now
        state, detail = found.state, found.detail
        if state not in TERMINAL and self.status.action in EVIDENCE:
            waited_s = (now - self.status.requested_wall_ns) / 1e9
            if waited_s >= self._config.acknowledge_seconds:
                state, detail = HaltState.FAILED, f"not taken within {self._config.acknowledge_seconds:g} s"
        elif state not in TERMINAL:
            self._escalate(now, ranks)
            if self._escalation.exhausted and self._escalation.waited_s(now) >= _GIVE_UP_SECONDS:
                state = HaltState.FAILED
        if self._escalation.said:
            detail = f"{detail}; {self._escalation.said}" if detail else self._escalation.said
        if state is HaltState.DONE:
            detail = found.detail
        if (state, found.step, detail) != (self.status.state, self.status.step, self.status.detail):
            self.status = replace(self.status, state=state, step=found.step, detail=detail, updated_wall_ns=now)
        if state is HaltState.FAILED and self.status.action not in EVIDENCE:
            self._served.clear()  # what still fires may ask again, after the cooldown and within the budget

    def _escalate(self, now: int, ranks: Mapping[int, RankStatus]) -> None:
        if self._acted_ns:
            since, seconds, what = self._acted_ns, self._config.checkpoint_seconds, "the checkpoint is not finished"
        else:
            since, seconds, what = self.status.requested_wall_ns, self._config.acknowledge_seconds, "not voted on"
        if now - since >= seconds * 1e9 and ranks:
            self._escalation.advance(
                now, ranks, what=f"{what} after {seconds:g} s", may_end_run=self.status.action in HALTING
            )

    def _adopt(self, ranks: Mapping[int, RankStatus]) -> None:
        """Follow a request that this node did not make: another node's sidecar asked, or the agent's own gate."""
        newest = max(
            (status.acknowledgement for status in ranks.values() if status.acknowledgement is not None),
            key=lambda ack: ack.wall_ns,
            default=None,
        )
        if (
            newest is None
            or newest.wall_ns <= self.status.updated_wall_ns
            or newest.state in TERMINAL - {HaltState.DONE}
        ):
            return
        if newest.request_id == self.status.request_id and newest.step == self.status.step:
            return
        made = [entry for entry in journal.load(self._directory) if entry.request_id == newest.request_id]
        known = purpose_of(newest, ranks, made, self._elsewhere.get((newest.request_id, newest.step)))
        if known is None:
            return  # a halt is claimed on somebody's word only; its event, or how the ranks close, will say
        action, reason, by = known
        self._last_id = max(self._last_id, newest.request_id)
        self._escalation = self._new_escalation(newest.request_id, newest.wall_ns)
        self._acted_ns = newest.wall_ns
        self.status = HaltStatus(
            request_id=newest.request_id,
            state=HaltState.VOTED,
            action=action,
            reason=reason,
            requested_by=by,
            step=newest.step,
            requested_wall_ns=min(
                status.acknowledgement.wall_ns
                for status in ranks.values()
                if status.acknowledgement is not None and status.acknowledgement.step == newest.step
            ),
            updated_wall_ns=newest.wall_ns,
            pinned_checkpoint=self.status.pinned_checkpoint,
        )


def _word(action: Action) -> str:
    return action.name.lower().replace("_", "-")
