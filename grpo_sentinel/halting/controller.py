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
from dataclasses import replace
from pathlib import Path

from grpo_sentinel.clock import Clock
from grpo_sentinel.config import HaltingConfig
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.halting.elsewhere import Elsewhere
from grpo_sentinel.halting.escalation import TakeStacks
from grpo_sentinel.halting.evidence import EVIDENCE, IN_TRAINER, strongest
from grpo_sentinel.halting.launcher import LauncherHandle
from grpo_sentinel.halting.ledger import Ledger, Wish
from grpo_sentinel.halting.progress import TERMINAL, begun_ns
from grpo_sentinel.halting.under_way import HALTING, UnderWay
from grpo_sentinel.protocol import ControlReader, write_control
from grpo_sentinel.records import Action, ControlWord, EventRecord, Finding, FindingState, HaltState
from grpo_sentinel.views import HaltStatus, RankStatus

_MOST_PASSED = 16  # ends of requests that nobody has fetched


class HaltRefused(SentinelError):
    """A request cannot be made now; the text says why and what to do."""


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
        self._waiting: Wish | None = None
        self._again: Wish | None = None  # evidence that gave way, asked for by a person
        self._under_way = self._following(0, 0)
        self._ledger = Ledger(directory, config, clock)
        self._last_id = self._ledger.last_id
        self._elsewhere = Elsewhere()
        self._ranks: Mapping[int, RankStatus] = {}
        self._begun_ns = 0  # when the ranks that live now attached
        self._asking = False  # the control file holds a request that trainers may still take up
        self._take_up()
        if math.isfinite(skip_above_norm) and not self.status.request_id:
            write_control(directory, ControlWord(request_id=0, skip_above_norm=skip_above_norm))

    def _following(self, request_id: int, since_ns: int, acted_ns: int = 0) -> UnderWay:
        return UnderWay(
            self._config, self._launcher, self._take_stacks, self._directory, request_id, since_ns, acted_ns
        )

    def _take_up(self) -> None:
        """Go on where an earlier daemon, or a command without one, left off."""
        reader = ControlReader(self._directory)
        word = reader.read()
        reader.close()
        if word is None or not word.request_id:
            return
        self._last_id = max(word.request_id, self._last_id)
        self._asking = word.action >= Action.CHECKPOINT or word.action in IN_TRAINER
        if not self._asking:
            return
        made = self._ledger.made(word.request_id)
        acknowledge_ns = round(self._config.acknowledge_seconds * 1e9)
        made_ns = word.deadline_wall_ns - acknowledge_ns if made is None else made.wall_ns
        self.status = HaltStatus(
            request_id=word.request_id,
            state=HaltState.REQUESTED,
            action=word.action,
            reason=word.reason,
            requested_by=word.requested_by,
            requested_wall_ns=made_ns,
            updated_wall_ns=made_ns,
        )
        self._under_way = self._following(word.request_id, made_ns)

    def _begin_anew(self, ranks: Mapping[int, RankStatus]) -> None:
        """Forget what was asked of earlier ranks when the run was started again under its name, say after a halt."""
        begun = begun_ns(ranks)
        if begun <= self._begun_ns:
            return
        self._begun_ns = begun
        self._ledger.begin_at(begun)
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
            and not self._ledger.has_served(finding.finding_id)
            and finding.wall_ns >= self._begun_ns
        ]
        if not asking or not self._config.enabled or self.halted or self.status.state is HaltState.FINISHED:
            return
        best = strongest(asking)
        if best.action in EVIDENCE and (self.open or self._config.dry_run or not self._ledger.allows(best.action)):
            return  # what fires on asks again
        wish = Wish(
            action=best.action,
            reason=best.message,
            requested_by=best.rule,
            by_rule=True,
            step=best.step,
            finding_ids=tuple(finding.finding_id for finding in asking if finding.action <= best.action),
        )
        if self._occupied_for(wish.action):
            self._wait_with(wish)
        elif wish.action in EVIDENCE or self._ledger.allows(wish.action):
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
        wish = Wish(action=action, reason=reason, requested_by=requested_by, by_rule=False)
        if action is Action.STACKS or not self._occupied_for(action):
            return self._make(wish)
        if action == self.status.action or (action < self.status.action and action not in EVIDENCE):
            return self.status.request_id
        if action in EVIDENCE:
            under_way = f"request {self.status.request_id} ({_word(self.status.action)})"
            raise HaltRefused(f"{under_way} is under way; ask again when it is done")
        self._wait_with(wish)
        return self._last_id + 1

    def _wait_with(self, wish: Wish) -> None:
        """Remember the strongest wish that exceeds the request under way."""
        if wish.action > self.status.action and (self._waiting is None or wish.action > self._waiting.action):
            self._waiting = wish

    def _make(self, wish: Wish) -> int:
        now = self._clock.wall_ns()
        self._ledger.serve(wish)
        if wish.by_rule and self._config.dry_run:
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
        self._under_way = self._following(request_id, now)
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
        self._ledger.note(wish, request_id, now)
        return request_id

    def _supersede(self, wish: Wish, request_id: int, now: int) -> str:
        """Keep how the request before ended for who publishes it, and say so when it has to give way to this one."""
        before = self.status
        if not before.request_id:
            return ""
        if not self.open:
            self._passed.append(before)
            return ""
        made = self._ledger.made(before.request_id)
        by_person = made is not None and not made.by_rule
        if made is not None and made.by_rule:
            self._ledger.let_ask_again(made.finding_ids)  # what fires on asks again
        again = by_person and wish.action not in HALTING
        if again:
            self._again = Wish(
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

    def _take_stacks_now(self, wish: Wish, request_id: int, now: int) -> int:
        """Take the stacks of all ranks of this node: no rank needs to be able to answer."""
        if self._take_stacks is None:
            raise HaltRefused("no sidecar watches this run: stacks are taken by the sidecar; start `grpo-sentinel run`")
        path = self._take_stacks([status.identity for status in self._ranks.values()], wish.reason)
        self._ledger.note(wish, request_id, now)
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

    def _say_dry(self, wish: Wish, now: int) -> None:
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
        self._elsewhere.observe(events)

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

    def _next(self) -> Wish | None:
        """Take what waits: what saves or stops the run first, then evidence that gave way."""
        if self._waiting is None:
            wish, self._again = self._again, None
        else:
            wish, self._waiting = self._waiting, None
        return wish

    def _follow(self, ranks: Mapping[int, RankStatus]) -> None:
        self.status = self._under_way.follow(self.status, ranks, self._clock.wall_ns())
        if self.status.state is HaltState.FAILED and self.status.action not in EVIDENCE:
            self._ledger.let_ask_again()  # what still fires, after the cooldown and within the budget

    def _adopt(self, ranks: Mapping[int, RankStatus]) -> None:
        """Follow a request that this node did not make: another node's sidecar asked, or the agent's own gate."""
        found = self._elsewhere.newest(self.status, ranks, self._ledger.made)
        if found is not None:
            self.status, acted_ns = found, found.updated_wall_ns
            self._under_way = self._following(found.request_id, acted_ns, acted_ns)
            self._last_id = max(self._last_id, found.request_id)


def _word(action: Action) -> str:
    return action.name.lower().replace("_", "-")
