"""One optimizer step's vote on this rank: what goes into the ballot, and what follows from the outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from grpo_sentinel.agent.ballot import NONFINITE
from grpo_sentinel.agent.core import Core, Outcome
from grpo_sentinel.agent.guard import Guard, say
from grpo_sentinel.agent.halt import HaltDesk, Request
from grpo_sentinel.agent.norm_level import NormLevel
from grpo_sentinel.agent.observing import Observer
from grpo_sentinel.agent.settings import Settings
from grpo_sentinel.agent.step_clock import StepClock
from grpo_sentinel.agent.vitals import Vitals
from grpo_sentinel.agent.watched import own_norm
from grpo_sentinel.records import Action

_WORDS = {
    Action.CHECKPOINT: "writes a checkpoint", Action.CHECKPOINT_AND_HALT: "writes a checkpoint and halts",
    Action.HALT_NOW: "halts",
}  # fmt: skip
_LATER_UPDATES = 16  # judged in a step; a loop with an optimizer per parameter would wait for each


class StepVote:
    """Brings norm, request and vitals to the core; reports skips, mismatches and requests agreed."""

    def __init__(
        self,
        *,
        settings: Settings,
        core: Core,
        desk: HaltDesk,
        guard: Guard,
        observer: Observer,
        clock: StepClock,
        event: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.outcome: Outcome | None = None  # of the present step, once it is held
        self.norm: torch.Tensor | float | None = None  # the trainer's own pre-clip norm
        self.mismatched = False
        self.vitals = Vitals()
        self._settings = settings
        self._core = core
        self._desk = desk
        self._guard = guard
        self._observer = observer
        self._clock = clock
        self._event = event
        self._held = 0
        self._later = 0  # updates of this step after its first
        self._level = NormLevel()

    def hold(self, step: int) -> Outcome:
        """Vote; blocks until all ranks have come. Never raises, also when probes do."""
        started = time.perf_counter()
        read = self._guard.run("norm", self._observer.norm_and_digest, self.norm)
        norm, digest = read if read is not None else (_host(self.norm), 0)
        if self._observer.must_wait:
            self._guard.exempt(time.perf_counter() - started)  # waits for the trainer's own backward to finish
        word = self._guard.essential("control", self._desk.pending)
        vitals = self._guard.essential("vitals", self._row_when_due)
        self._clock.arrived()
        started = time.perf_counter()
        outcome = self._core.decide(
            norm,
            bound=self._desk.word.skip_above_norm,
            action=int(word.action) if word is not None else 0,
            request_id=word.request_id if word is not None else 0,
            digest=digest,
            vitals=vitals,
            uneven=self._observer.model.uneven,
            copies=self._observer.model.copies if self.norm is None and self._observer.model.sharded else 0,
        )
        self._guard.charge(time.perf_counter() - started - outcome.wait_seconds)
        self.outcome = outcome
        self._guard.essential("halt", self._pass_on, outcome, step)
        self._guard.essential("vote report", self._report, outcome)
        return outcome

    def later(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether an update after the step's first is to be skipped: its own gradient is not finite.

        Without a vote, since ranks need not make the same number of updates within a step: only where every rank sees
        the same gradient and comes to the same. Waits once for the device.
        """
        outcome, model = self.outcome, self._observer.model
        self._later += 1
        if outcome is None or self._settings.gate == "off" or self._later > _LATER_UPDATES:
            return False
        if self._core.world > 1 and not model.replicated:
            return False
        norm = own_norm(("", parameter.grad) for group in optimizer.param_groups for parameter in group["params"])
        if norm is None or math.isfinite(value := float(norm)):
            return False
        self._core.skipped_updates += 1
        last = self._core.world - 1
        self.outcome = replace(outcome, skip=True, flag=NONFINITE, norm=value, first_flagged=0, last_flagged=last)
        self._event("skip", _skip_body(self.outcome))
        return True

    @property
    def global_norm(self) -> float | None:
        """The pre-clip norm over all ranks; None when only this rank's part of it is known."""
        if isinstance(self.norm, float):
            return self.norm  # some engines say it only after their step
        if self.outcome is None:
            return None
        known = self.norm is not None or not self._observer.model.sharded or self.outcome.summed
        return self.outcome.norm if known else None

    def next_step(self) -> None:
        """Forget the step."""
        self.outcome = self.norm = None
        self._later = 0

    def _row_when_due(self) -> list[float] | None:
        """Give this rank's vitals at every n-th vote; that vote itself agrees whether every rank has them ready."""
        self._held += 1
        due = self._core.world > 1 and self._held > 1 and (self._held - 1) % self._settings.vitals_every == 0
        return self.vitals.row() if due else None

    def _pass_on(self, outcome: Outcome, step: int) -> None:
        """Take what was agreed to the halt desk; no probe is touched here."""
        action, reason = outcome.action, ""
        if outcome.voted and outcome.flag == NONFINITE and not outcome.by_scaler and self._settings.gate == "halt":
            action, reason = max(action, int(Action.CHECKPOINT_AND_HALT)), outcome.cause
        if not outcome.voted:
            if self._desk.has_pending():
                why = self._core.why_off or "a rank may have run out of input (uneven inputs, torch's Join)"
                self._desk.refuse(step, f"ranks cannot agree: {why}")
        elif (taken := self._desk.agreed(action, outcome.request_id, step, reason)) is not None:
            self._event("halt", {"action": taken.name.lower(), "request_id": outcome.request_id, "reason": reason})
            self._speak(self._desk.current)

    def _speak(self, request: Request | None) -> None:
        """Tell who reads the trainer's own log why training ends there."""
        if self._core.rank == 0 and request is not None and request.action in _WORDS:
            asked = f" as request {request.request_id} asks" if request.request_id else ""
            why = f": {request.reason}" if request.reason else ""
            say(f"step {request.step}: the run {_WORDS[request.action]}{asked}{why}")

    def _report(self, outcome: Outcome) -> None:
        if outcome.skip and not outcome.by_scaler:
            self._event("skip", _skip_body(outcome))
        spikes = self._level.spikes(outcome.norm_max)  # the same on all ranks that have voted
        faulty = spikes or (outcome.flag == NONFINITE and not outcome.by_scaler)
        if faulty and self._settings.local_gradients == "on_anomaly":
            self._guard.run("local gradients", self._observer.arm_local_gradients)
        mismatched = self._observer.model.replicated and (outcome.norms_differ or outcome.digests_differ)
        if mismatched and not self.mismatched:
            what = "gradient norms" if outcome.norms_differ else "parameters"
            body = {"what": "replica_mismatch", "of": what, "norm_min": outcome.norm_min, "norm_max": outcome.norm_max}
            self._event("note", body)
        self.mismatched = mismatched


def _host(norm: torch.Tensor | float | None) -> float | None:
    if norm is None:
        return None
    try:
        return float(norm)
    except Exception as error:  # noqa: BLE001 - a dead device: its own error reaches the trainer at its next call
        say(f"the gradient norm could not be read ({type(error).__name__}); this step is not judged")
        return None


def _skip_body(outcome: Outcome) -> dict[str, Any]:
    first, last = outcome.first_flagged, outcome.last_flagged
    norm = outcome.norm
    return {
        "reason": outcome.cause,
        "norm": norm if norm is None or math.isfinite(norm) else str(norm),
        "norm_min": outcome.norm_min,
        "norm_max": outcome.norm_max,
        "flagged_ranks": [first] if first == last else [first, last],
        "agreed": outcome.voted,
    }
