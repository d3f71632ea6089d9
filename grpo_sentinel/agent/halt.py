"""One request's life on this rank: seen in the control file, voted, carried out, acknowledged.

    control file -> pending() -> [vote] -> agreed() -> verdict() -> saved() / failed()
    acknowledged:                          VOTED       CHECKPOINTING  DONE / FAILED          at close: FINISHED, FAILED

What the loop saves of itself before it has its verdict is not what was asked for: the verdict is the same on all ranks,
and a halt stands until the loop is left. Where every rank holds the same weights, one rank's save is enough: the others
say FINISHED, "left to rank 0".

    capture, memory snapshot, anomaly trace:  agreed() -> `evidence` -> evidence_taken() / evidence_failed()

On a node whose own sidecar asked nothing, the agreed request of another node is acknowledged under that node's id.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from grpo_sentinel.agent.null import NOTHING, Verdict
from grpo_sentinel.protocol.identity import process_began_ns
from grpo_sentinel.records import LEFT, Ack, Action, ControlWord, HaltState

EVIDENCE = frozenset({Action.CAPTURE, Action.MEMORY_SNAPSHOT, Action.ANOMALY_TRACE})
"""What is taken at a step boundary without stopping; stacks are the sidecar's to take, also from a rank that hangs."""

_CARRIED_OUT: dict[str, int] = {}
"""Newest request handled per control file, so that a second attachment in this process does not repeat it."""


class Control(Protocol):
    """Reads the sidecar's control word; cheap, never raises for a missing or torn file."""

    def read(self) -> ControlWord | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that the ranks agreed on at `step`."""

    request_id: int
    action: Action
    step: int
    reason: str


class HaltDesk:
    """Keeps the newest control word and the request being carried out."""

    def __init__(self, control: Control | None, acknowledge: Callable[[Ack], None], *, where: str = "") -> None:
        self.word = ControlWord(request_id=0)
        self.halted = False
        self.replica = False  # this rank's weights are rank 0's too, whose save will do
        self.evidence: Request | None = None  # asked for and not taken yet
        self._control = control
        self._acknowledge = acknowledge
        self._where = where
        self._born_ns = process_began_ns()
        self._current: Request | None = None
        self._told = False  # the loop knows that `_current` wants a checkpoint
        self._stop = NOTHING  # the halt that the loop was told of
        self._steps_after = 0  # that it made all the same
        self._refused = 0

    @property
    def acting(self) -> bool:
        """Tell whether an agreed request waits for its checkpoint or its halt."""
        return self._current is not None

    @property
    def current(self) -> Request | None:
        """The agreed request that waits for its checkpoint or its halt."""
        return self._current

    def pending(self) -> ControlWord | None:
        """Read the control file; the request to put to the vote, None when there is none or it was handled."""
        word = self._control.read() if self._control is not None else None
        if word is not None:
            self.word = word
        return self.word if self._pending_id() else None

    def has_pending(self) -> bool:
        """Tell whether this node's sidecar asks for something not yet handled, as of the last reading."""
        return self._pending_id() != 0

    def refuse(self, step: int, why: str) -> None:
        """Say once per request that it cannot be agreed."""
        if self.word.request_id > self._refused:
            self._refused = self.word.request_id
            self._say(self.word.request_id, HaltState.REFUSED, step, why)

    def agreed(self, action: int, request_id: int, step: int, reason: str = "") -> Action | None:
        """Take what the vote decided; None when it asked nothing. All ranks come here at the same step."""
        if action < Action.CHECKPOINT and action not in EVIDENCE:
            return None
        self.pending()  # the request may have come after this rank's last look, and before another rank's
        mine = self._pending_id() if self.word.action <= action else 0  # a stronger one waits for its own vote
        if mine:
            reason = reason or self.word.reason
            _CARRIED_OUT[self._where] = mine
        if action in EVIDENCE:
            if self._current is not None:
                return None  # a checkpoint or halt under way goes first
            self.evidence = Request(request_id=mine or request_id, action=Action(action), step=step, reason=reason)
            self._say(self.evidence.request_id, HaltState.VOTED, step, reason)
            return self.evidence.action
        self.evidence = None  # what stops the run goes first
        strongest = max(Action(action), self._current.action) if self._current is not None else Action(action)
        request = self._current = Request(request_id=mine or request_id, action=strongest, step=step, reason=reason)
        self._told = False
        self._say(request.request_id, HaltState.VOTED, step, request.reason)
        return request.action

    def _pending_id(self) -> int:
        """Give the id of this node's own unhandled request, 0 when there is none.

        A run that is started again under its old name finds the old control file: what was asked of the processes
        before it is not asked of this one, or a run resumed after a halt would halt again at once.
        """
        word = self.word
        if word.action < Action.CHECKPOINT and word.action not in EVIDENCE:
            return 0
        if word.request_id <= _CARRIED_OUT.get(self._where, 0):
            return 0
        return 0 if 0 < word.made_wall_ns < self._born_ns else word.request_id

    def verdict(self, *, skipped: bool) -> Verdict:
        """Turn the request being carried out into what the loop should do now."""
        request = self._current
        if request is not None and self._told and self.replica:
            self._finish(HaltState.FINISHED, LEFT)
            request = None
        if self.halted:
            self._steps_after += 1
        if request is None or self._told:
            return replace(self._stop, skipped=skipped) if self.halted or skipped else NOTHING
        halt = request.action in (Action.CHECKPOINT_AND_HALT, Action.HALT_NOW)
        checkpoint = request.action in (Action.CHECKPOINT, Action.CHECKPOINT_AND_HALT)
        if checkpoint:
            self._told = True
            self._say(request.request_id, HaltState.CHECKPOINTING, request.step)
        else:
            self._finish(HaltState.DONE, "")
        told = Verdict(
            halt=halt, checkpoint=checkpoint, skipped=skipped, request_id=request.request_id, reason=request.reason
        )
        if halt:
            self.halted, self._stop = True, replace(told, checkpoint=False)
        return told

    @property
    def went_on(self) -> int:
        """Steps that the loop has made since it was told to halt."""
        return self._steps_after

    def saved(self, path: str) -> None:
        """Acknowledge the checkpoint that the request asked for; one that the loop was not told to save is its own."""
        if self._told:
            self._finish(HaltState.DONE, path)

    def failed(self, why: str) -> None:
        """Acknowledge that the request could not be carried out."""
        self._finish(HaltState.FAILED, why)

    def evidence_taken(self, detail: str) -> None:
        """Acknowledge evidence: `detail` is its path, or what it says."""
        self._settle_evidence(HaltState.DONE, detail)

    def evidence_failed(self, why: str) -> None:
        """Acknowledge that evidence could not be taken."""
        self._settle_evidence(HaltState.FAILED, why)

    def _settle_evidence(self, state: HaltState, detail: str) -> None:
        request, self.evidence = self.evidence, None
        if request is not None:
            self._say(request.request_id, state, request.step, detail)

    def run_ended(self, step: int) -> None:
        """Settle what is still open when training ends."""
        self.evidence_failed("training ended before the evidence was taken")
        if self._current is not None and self._told and self.replica:
            self._finish(HaltState.FINISHED, LEFT)
        elif self._current is not None:
            self.failed(
                "training ended and the checkpoint that was asked for was not reported as saved; "
                "where the trainer saved it, call agent.checkpoint_saved(path) after the save"
            )
        elif self.pending() is not None and self.word.request_id > self._refused:
            self._say(self.word.request_id, HaltState.FINISHED, step, "the run ended first")

    def _finish(self, state: HaltState, detail: str) -> None:
        request, self._current, self._told = self._current, None, False
        if request is not None:
            self._say(request.request_id, state, request.step, detail)

    def _say(self, request_id: int, state: HaltState, step: int, detail: str = "") -> None:
        ack = Ack(request_id=request_id, state=state, step=step, wall_ns=time.time_ns(), detail=detail)
        self._acknowledge(ack)
