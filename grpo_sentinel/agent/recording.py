"""Closes the record of a step: what the host knows, what the probes read, what the ranks' vitals say; then it goes out.

On a device the probes' part lands one step later, so that nothing waits for the copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_sentinel.agent.core import Core, Outcome
from grpo_sentinel.agent.guard import Guard, say
from grpo_sentinel.agent.observing import Observer
from grpo_sentinel.agent.own_time import OwnTime
from grpo_sentinel.agent.phases import PhaseClock
from grpo_sentinel.agent.probes.pack import Harvest
from grpo_sentinel.agent.spoken import Spoken
from grpo_sentinel.agent.step_clock import StepClock
from grpo_sentinel.agent.step_record import StepFacts, complete, host_values
from grpo_sentinel.agent.step_vote import StepVote
from grpo_sentinel.agent.vitals import compare
from grpo_sentinel.records import Kind

_NAMES = 16  # of tensors, in one event


class Landed(Protocol):
    """Takes the values of a step that is complete."""

    def __call__(self, step: int, values: dict[str, float]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecorder:
    """Makes the record of each step of one rank."""

    guard: Guard
    core: Core
    observer: Observer
    vote: StepVote
    clock: StepClock
    phases: PhaseClock
    own_time: OwnTime
    event: Callable[..., None]
    push: Callable[..., None]
    spoken: Spoken
    landed: Landed  # evidence is taken from a step's values

    def end(self, step: int, outcome: Outcome, *, applied: bool, names_overflow: int) -> None:
        """Send the record of a step that has ended, or start the copies that it waits for."""
        self.observer.collect()
        self.late()
        self.spoken.step_ended(step, outcome)
        values = host_values(self._facts(outcome, applied, names_overflow))
        if outcome.rows:
            values.update(compare(outcome.rows, self.core.rank))
        self._thin(values)
        if self.observer.must_wait:
            self.observer.depart(step, values, outcome.by_scaler)
        else:
            self._push(step, values, outcome.by_scaler, self.observer.harvest())

    def late(self) -> None:
        """Send the record of the step whose copies are in flight, if there is one."""
        late = self.observer.landed()
        if late is not None:
            self._push(*late)

    def _push(self, step: int, values: dict[str, float], by_scaler: bool, harvest: Harvest) -> None:
        for found in () if by_scaler else harvest.nonfinite:
            names = list(found.names)
            body: dict[str, Any] = {"where": found.where, "names": names[:_NAMES], "count": len(names)}
            self.event("nonfinite", body, step=step)
        for body in self.observer.naming.changed(harvest.subjects, harvest.values, step):
            self.event("named", body, step=step)
        self.spoken.landed(step, (name for found in harvest.nonfinite for name in found.names))
        values = complete(harvest.values, values)
        self.landed(step, values)
        self.vote.vitals.note_step(step, values)
        self.push(values, Kind.STEP, step=step)

    def _facts(self, outcome: Outcome, applied: bool, names_overflow: int) -> StepFacts:
        governor, core, guard = self.own_time.governor, self.core, self.guard
        seconds = self.own_time.of_step()
        return StepFacts(
            outcome=outcome,
            norm=self.vote.global_norm,
            applied=applied,
            mismatched=self.vote.mismatched if outcome.voted and self.observer.model.replicated else None,
            elapsed=self.clock.elapsed(),
            arrival=self.clock.arrival or 0.0,
            phases=self.phases.take(),
            self_seconds=seconds,
            sampling_every=governor.every,
            allowed_seconds=governor.allowed_seconds,
            plain_seconds=governor.plain_seconds,
            core_active=core.voting,
            skipped_updates=core.skipped_updates,
            scaler_skips=core.scaler_skips,
            probe_errors=guard.errors,
            calls_left_out=guard.left_out,
            probes_off=tuple(guard.off),
            names_overflow=names_overflow,
            completion_tokens=self.observer.completion_tokens,
        )

    def _thin(self, values: dict[str, float]) -> None:
        seconds, elapsed = values["sentinel.agent_seconds"], values["time.step_seconds"]
        change = self.own_time.thin(seconds, elapsed, full=self.observer.full)
        if change is not None:
            self.event("note", change.body())
            if self.core.rank == 0:
                say(change.text())
