"""The agent of one rank: takes observations, votes before the optimizer step, pushes records, passes requests on.

    observe_data, [forward], observe_policy, [backward], observe_gradients: vote, gate, [optimizer], end_step

Everything but the vote runs inside the guard: it may fail, and then the trainer and the core go on without it.
Called from the training thread only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from grpo_sentinel.agent import arguments
from grpo_sentinel.agent.arguments import fails_open
from grpo_sentinel.agent.capture.capture import Capture
from grpo_sentinel.agent.collectives import Collectives
from grpo_sentinel.agent.compilation import CompileWatch
from grpo_sentinel.agent.core import Core, Outcome
from grpo_sentinel.agent.guard import Guard, say
from grpo_sentinel.agent.halt import HaltDesk
from grpo_sentinel.agent.last_words import LastWords
from grpo_sentinel.agent.null import NOTHING, Verdict
from grpo_sentinel.agent.observations import Observations
from grpo_sentinel.agent.observing import Observer
from grpo_sentinel.agent.optimizers import OptimizerHooks, UpdateWatch, innermost
from grpo_sentinel.agent.own_time import OwnTime
from grpo_sentinel.agent.phases import PhaseClock
from grpo_sentinel.agent.recording import StepRecorder
from grpo_sentinel.agent.settings import Settings
from grpo_sentinel.agent.spoken import Spoken, run_by_launcher
from grpo_sentinel.agent.step_clock import StepClock
from grpo_sentinel.agent.step_vote import StepVote
from grpo_sentinel.agent.writing import NoWriter, Writer
from grpo_sentinel.records import Kind, Mode, Phase

_LAST_STEPS = 10  # a halted loop may make a few more: one for each outer loop that it leaves
_BETWEEN_STEPS = (Phase.IDLE, Phase.CHECKPOINT, Phase.EVALUATION, Phase.FINISHED)


class Agent(Observations):
    """Watches one training loop on one rank. Made by `attach()`; no method raises or synchronises for long."""

    def __init__(self, *, settings: Settings, core: Core, desk: HaltDesk, writer: Writer, guard: Guard) -> None:
        self.settings = settings
        self.core = core
        self.guard = guard
        self.desk = desk
        self.writer = writer
        self.phases = PhaseClock(writer.phase)
        self.clock = StepClock(self.phases)
        self._compiling = CompileWatch(
            lambda phase: self.guard.run("compile", self.phases.enter, phase),
            lambda phase: self.guard.run("compile", self.phases.leave, phase),
        )
        self.own_time = OwnTime(guard, share=settings.overhead_share, floor_seconds=settings.overhead_floor_seconds)
        ring = getattr(writer, "path", None)
        self.observer = Observer(settings, guard, recording=not isinstance(writer, NoWriter), ring=ring)
        self.observer.tell = self.event
        self.mode = Mode.TRAIN
        self.step = 1
        self.closed = False
        self.failed = False  # an exception left the trainer and no step has ended since
        self.active = True
        self.capture: Capture | None = None  # takes evidence; None where it is off
        self.collectives: Collectives | None = None  # tells of torch's flight recorder; None where that is off
        self.last_words = LastWords(self)
        self._spoken = Spoken(
            core.rank, None if ring is None else ring.parent, world=core.world, launched=run_by_launcher()
        )
        self.updates = UpdateWatch(
            self._vote_on_update,
            self._vote_on_later_update,
            self.observer,
            guard,
            enter=self.enter,
            leave=self.leave,
        )
        self._optimizers = OptimizerHooks(self.updates)
        self._vote, self._recorder = self._per_step()
        self._looked = False  # at this step's gradients
        self._open = False
        self._ended = 0  # the last step that has
        self._on_close: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        """Say what a person asks first: which run, which rank, is it on, do the ranks vote."""
        path = getattr(self.writer, "path", None)
        run = "no ring" if path is None else f"run {path.parent.name}"
        state = "closed" if self.active and self.closed else "active" if self.active else "inert (forked child)"
        votes = "voting" if self.core.voting else f"not voting ({self.core.why_off})"
        place = f"rank {self.core.rank} of {self.core.world}"
        return f"<grpo_sentinel agent: {run}, {place}, {state}, {votes}, step {self.step}>"

    # ---- what to watch

    @fails_open()
    def watch(
        self,
        *,
        model: torch.nn.Module | None = None,
        optimizer: Any = None,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        replicated: bool | None = None,
    ) -> None:
        """Take the model and optimizer (or a list of them) to look at; hooks go on the innermost torch optimizers."""
        guard = self.guard
        model = arguments.kind_of(guard, "watch(model", model, torch.nn.Module, "give a torch.nn.Module")
        given = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
        optimizers = [one for one in (_real(guard, one) for one in given) if one is not None]
        named_parameters = arguments.pairs(guard, "watch(named_parameters", named_parameters)
        replicated = arguments.kind_of(guard, "watch(replicated", replicated, bool, "give True, False or nothing")
        guard.run("watch", self.observer.watch, model, optimizers, named_parameters, replicated)
        self.desk.replica = self.observer.model.replicated and self.core.rank > 0
        for one in optimizers:
            self.guard.run("optimizer hooks", self._optimizers.attach, one)
        if self.capture is not None:
            self.guard.run("capture", self.capture.watch, model)
        if self.settings.local_gradients == "always":
            self.guard.run("local gradients", self.observer.arm_local_gradients)

    @fails_open()
    def configure(self, **context: Any) -> None:
        """Take what is known of the trainer's configuration, and send it to the sidecar."""
        if isinstance(context.get("output_dir"), (str, os.PathLike)):
            context["output_dir"] = os.path.abspath(context["output_dir"])  # the sidecar's working directory is another
        self.observer.configure(context)
        self.event("config", context, step=self.step)

    @fails_open()
    def on_close(self, action: Callable[[], None]) -> None:
        """Run `action` when the agent is closed: integrations put back what they wrapped."""
        action = arguments.kind_of(self.guard, "on_close(action", action, Callable, "give a function")
        if action is not None:
            self._on_close.append(action)

    # ---- observations

    @fails_open()
    def begin_step(self, step: int) -> None:
        """Name the optimizer step that is worked on from here, 1-based."""
        step = arguments.step_number(self.guard, "begin_step(step", step, self.step)
        self.step = self.phases.step = step
        self._open = True
        self.observer.full = self.own_time.governor.due(step)
        self.guard.run("compile", self._compiling.look)
        if not self.clock.running:
            self.clock.restart()
            self.own_time.start()
            self.guard.run("phase", self.phases.take)  # what came before the first step belongs to no step

    @fails_open(nullcontext)
    @contextmanager
    def phase(self, phase: Phase | str) -> Iterator[None]:
        """Stamp the block as one phase: "generate", "reward", "forward", "backward", "checkpoint", "evaluation", ..."""
        which = arguments.phase(self.guard, "phase(phase", phase)
        before = self.mode
        if which is Phase.EVALUATION:
            self.mode = Mode.EVALUATION
        self.enter(which)
        try:
            yield
        except BaseException as error:
            self._note_raised(error)
            raise
        finally:
            self.mode = before
            self.leave(which)

    @fails_open()
    def enter(self, phase: Phase | None) -> None:
        """Begin a phase; the first one of a step's own work begins the step, so that a death in it is told with it."""
        phase = arguments.phase(self.guard, "enter(phase", phase)
        if phase is not None:
            if not self.clock.running or phase not in _BETWEEN_STEPS:
                self._begin()
            self.guard.run("phase", self.phases.enter, phase)

    @fails_open()
    def leave(self, phase: Phase | None) -> None:
        """End a phase."""
        phase = arguments.phase(self.guard, "leave(phase", phase)
        if phase is not None:
            self.guard.run("phase", self.phases.leave, phase)

    def _note_raised(self, error: BaseException) -> None:
        """Keep in mind in which phase an exception was raised, before that phase is left."""
        self.guard.run("phase", self.phases.raised, error)

    @fails_open()
    def event(self, kind: str, body: Mapping[str, Any] | None = None, *, step: int | None = None) -> None:
        """Push one event; see `catalog.EVENTS`."""
        if arguments.kind_of(self.guard, "event(kind", kind, str, "give the kind of event as a word") is None:
            return
        step = self.step if step is None else arguments.step_number(self.guard, "event(step", step, self.step)
        self.guard.run("events", self.writer.event, kind, arguments.named(self.guard, "event(body", body), step=step)

    @fails_open()
    def exception(self, error: BaseException, where: str) -> None:
        """Push an exception that is about to leave the trainer, once."""
        if arguments.kind_of(self.guard, "exception(error", error, BaseException, "give the one raised") is None:
            return
        self.failed = True
        self.last_words.tell(error, where)

    # ---- the vote

    @property
    def looked(self) -> bool:
        """Tell whether this step's gradients have been read."""
        return self._looked

    @property
    def clipped(self) -> bool:
        """Tell whether the trainer has clipped this step's gradients by now."""
        return self._vote.norm is not None

    @fails_open(lambda: Outcome(voted=False), bare=True)
    def vote(self) -> Outcome:
        """Vote on this step's update, once; blocks until all ranks have come. Never raises, also when probes do."""
        if self._vote.outcome is not None:
            return self._vote.outcome
        self._begin()
        self.enter(Phase.VOTE)
        outcome = self._vote.hold(self.step)
        if self.capture is not None and self.capture.due(outcome):
            self.guard.essential("capture", self.capture.voted, outcome)
        elif self.capture is None and self.desk.evidence is not None:
            self.guard.essential("halt", self.desk.evidence_failed, "capturing is off (agent.capture)")
        if outcome.skip and not self._optimizers.attached and self.observer.model.source is None:
            self.observer.model.drop_gradients()  # no torch optimizer to hook: the gate closes here
        self.leave(Phase.VOTE)
        return outcome

    def _vote_on_update(self) -> Outcome:
        """Vote from the optimizer's own hook; where nobody has read the gradients, this is the last moment to."""
        if not self._looked:
            self.look_at_gradients()
        return self.vote()

    def _vote_on_later_update(self, optimizer: torch.optim.Optimizer) -> bool:
        return bool(self.guard.essential("vote", self._vote.later, optimizer))

    # ---- end of step

    @fails_open(lambda: NOTHING, bare=True)
    def end_step(self, step: int | None = None) -> Verdict:
        """Close the optimizer step: push its record and say what the loop should do now. Never raises.

        Votes first when nothing has (a scaler skipped the optimizer on this rank): every step has one vote, also one
        whose `step` is no number; the count then goes on from the step before.
        """
        if step is not None:
            named, place = self.step, "end_step(step"
            self.step = self.phases.step = arguments.step_number(self.guard, place, step, named)
            arguments.onward(self.guard, place, self.step, min(self._ended, named))
        outcome = self.vote()
        self.guard.essential("step record", self.updates.end_step, skipped=outcome.skip)
        ended = {"applied": self.updates.applied, "names_overflow": self.writer.names_overflow}
        self.guard.essential("step record", self._recorder.end, self.step, outcome, **ended)
        verdict = self.guard.essential("halt", self.desk.verdict, skipped=outcome.skip) or NOTHING
        if self.desk.went_on == 1 and self.core.rank == 0:
            say(f"the loop went on after the halt at step {self.step - 1}: leave it where `verdict.halt` is true")
        self._vote.next_step()  # first of all: a step that is not forgotten would go without its vote
        if self.capture is not None:
            self.guard.essential("capture", self.capture.next_step)
        self.updates.next_step()
        self._looked = self._open = self.failed = False
        self.observer.next_step()
        self._ended = self.step
        self.step += 1
        self.guard.run("phase", self.phases.switch, Phase.CHECKPOINT if verdict.checkpoint else Phase.IDLE)
        self.clock.restart()
        return verdict

    def _landed(self, step: int, values: dict[str, float]) -> None:
        if self.capture is not None:
            self.guard.essential("capture", self.capture.landed, step, values)

    def _push(self, values: Mapping[str, float], kind: Kind, *, micro_batch: int = 0, step: int | None = None) -> None:
        self.guard.run(
            "ring",
            self.writer.push,
            values,
            step=self.step if step is None else step,
            kind=kind,
            mode=self.mode,
            micro_batch=micro_batch,
            generation=self.observer.generation,
        )

    def _begin(self) -> None:
        if not self._open:
            self.begin_step(self.step)

    def _per_step(self) -> tuple[StepVote, StepRecorder]:
        """Make what goes from step to step with the parts that this agent has now."""
        parts: dict[str, Any] = {"core": self.core, "guard": self.guard, "observer": self.observer, "clock": self.clock}
        vote = StepVote(settings=self.settings, desk=self.desk, event=self.event, **parts)
        parts.update(vote=vote, phases=self.phases, own_time=self.own_time, spoken=self._spoken)
        return vote, StepRecorder(event=self.event, push=self._push, landed=self._landed, **parts)

    # ---- the end

    def disown(self) -> None:
        """Become inert in a forked child: no hook, no vote, no word to the ring that belongs to the parent."""
        self.active, self.closed = False, True
        self.writer = NoWriter()
        self.phases = PhaseClock(self.writer.phase)
        self.core = Core(rank=self.core.rank, transport=None, why_off="a forked child", gate="off")
        self.desk = HaltDesk(None, self.writer.acknowledge)
        self._vote, self._recorder = self._per_step()
        self.capture = None
        for action in [*reversed(self._on_close), self._optimizers.detach, self.observer.close]:
            self.guard.essential("fork", action)

    @fails_open()
    def checkpoint_saved(self, path: Any) -> None:
        """Acknowledge a checkpoint: `path` is on disk, finished on this rank.

        It holds the step that has ended last, or the present one where that has been voted on: its update is in it.
        """
        path = arguments.place_on_disk(self.guard, "checkpoint_saved(path", path)
        if path:
            held = self.step if self._vote.outcome is not None else max(self.step - 1, 0)
            self.event("checkpoint", {"path": path, "step": held}, step=held)
        self.guard.essential("halt", self.desk.saved, path)
        if self.phases.now is Phase.CHECKPOINT:
            self.guard.run("phase", self.phases.switch, Phase.IDLE)

    @fails_open()
    def checkpoint_failed(self, reason: str) -> None:
        """Acknowledge that the checkpoint that was asked for could not be written."""
        self.guard.essential("halt", self.desk.failed, arguments.text(reason))

    @fails_open()
    def close(self, detail: str = "finished") -> None:
        """End on purpose: the last record out, wrapped things put back, the segment marked closed. Idempotent."""
        detail = (
            arguments.kind_of(self.guard, "close(detail", detail, str, "give a few words, or nothing") or "finished"
        )
        if self.closed:
            return
        self.closed = True
        if self.capture is not None:
            self.guard.essential("capture", self.capture.close)
        self.guard.essential("step record", self._recorder.late)
        self.guard.run("spoken", self._spoken.closed)
        self.guard.essential("halt", self.desk.run_ended, self.step - 1)
        for action in reversed(self._on_close):
            self.guard.essential("detach", action)
        self.guard.run("compile", self._compiling.close)
        if self.collectives is not None:
            self.guard.run("collectives", self.collectives.close)
        self.own_time.close()
        self.guard.run("optimizer hooks", self._optimizers.detach)
        self.guard.essential("watch", self.observer.close)
        self.guard.run("phase", self.phases.switch, Phase.FINISHED)
        if self.desk.halted and detail == "finished":
            went_on = self.desk.went_on
            detail = f"went on for {went_on} steps after the halt" if went_on > _LAST_STEPS else "halted"
        self.guard.run("ring", self.writer.close, detail)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.exception(error, "loop")


def _real(guard: Guard, optimizer: Any) -> Any:
    """Give `optimizer` where there is a torch optimizer inside; None where the gate could not be put on it."""
    try:
        if optimizer is not None:
            innermost(optimizer)
        return optimizer
    except Exception:  # noqa: BLE001 - objects of others raise what they like
        what = (
            f"watch(optimizer={arguments.shown(optimizer)}): no torch optimizer inside, its updates cannot be stopped"
        )
        guard.refuse("watch(optimizer", f"{what}; give a torch.optim.Optimizer")
        return None
