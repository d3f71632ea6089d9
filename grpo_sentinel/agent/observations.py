"""What a loop or an integration hands to the agent: data, rewards, policy, gradients, the optimizer's details.

Every argument may be absurd: it is refused in a sentence and left out, and the vote of the step happens all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from grpo_sentinel.agent import arguments
from grpo_sentinel.agent.arguments import fails_open
from grpo_sentinel.agent.capture.capture import Capture
from grpo_sentinel.agent.core import Core, Outcome
from grpo_sentinel.agent.guard import Guard
from grpo_sentinel.agent.observing import DATA_NAMES, DATA_NUMBERS, POLICY_NAMES, POLICY_TENSORS, REWARD_NAMES, Observer
from grpo_sentinel.agent.probes.model_state import observe_model
from grpo_sentinel.agent.step_vote import StepVote
from grpo_sentinel.records import Kind, Phase

_OPTIMIZER_NAMES = frozenset({"scaler", "engine", "scheduler", "learning_rate_expected"})


class Observations:
    """The observing half of `Agent`, which owns all of these parts."""

    guard: Guard
    core: Core
    observer: Observer
    capture: Capture | None
    step: int
    _vote: StepVote
    _looked: bool

    def vote(self) -> Outcome:
        """Vote on this step's update."""
        raise NotImplementedError

    def enter(self, phase: Phase | None) -> None:
        """Begin a phase."""
        raise NotImplementedError

    def leave(self, phase: Phase | None) -> None:
        """End a phase."""
        raise NotImplementedError

    def _note_raised(self, error: BaseException) -> None:
        """Keep in mind in which phase an exception was raised."""
        raise NotImplementedError

    def _begin(self) -> None:
        raise NotImplementedError

    def _push(self, values: Mapping[str, float], kind: Kind, *, micro_batch: int = 0, step: int | None = None) -> None:
        raise NotImplementedError

    @fails_open()
    def observe_data(self, batch: Mapping[str, Any] | None = None, **tensors: Any) -> None:
        """Look at one micro-batch before its forward, and push what it says at once.

        Keys are TRL's (`prompt_ids`, `prompt_mask`, `completion_ids`, `completion_mask`, `advantages`, ...), or
        `input_ids` and `attention_mask`. Costs one small copy: a bad token id kills the process in the forward.
        Asynchronous trainers add `weight_versions` (B, or B x T of completion tokens) that sampled the batch,
        `weight_version` of their own, and `stale_dropped`, the samples thrown away as too old since the last call.
        """
        self._begin()
        if not self.observer.recording:
            return
        given = {**arguments.named(self.guard, "observe_data(batch", batch), **tensors}
        if self.capture is not None and not self.capture.fed:
            self.guard.run("capture", self.capture.batch, given)
        given = arguments.tensors(self.guard, "observe_data", given, DATA_NAMES)
        for name in DATA_NUMBERS:
            if name in given:
                number = arguments.scalar(self.guard, f"observe_data({name}", given[name], "give a number of 0 or more")
                given[name] = float(number) if number is not None else None
        values = self.guard.run("data", self.observer.data, given)
        if values:
            self._push(values, Kind.DATA, micro_batch=self.observer.micro_batch)

    @fails_open()
    def observe_rewards(self, rewards: Any, **details: Any) -> None:
        """Look at raw rewards: a tensor (B x F) with `func_names`, or a mapping of function name to B scores.

        With `prompts_B` (texts or ids) also at groups (one prompt each, with `completions_B` duplicates in them) and at
        how often each prompt was solved over the run; `sources_B` names the data set of each row.
        None counts as NaN. `group_size` adjacent rows belong to one prompt; see `probes.reward.observe` for the rest.
        """
        self._begin()
        if not self.observer.recording:
            return
        details = arguments.known(self.guard, "observe_rewards", details, REWARD_NAMES)
        values = self.guard.run("reward", self.observer.scores, rewards, details)
        if values:
            if self.capture is not None:
                self.guard.essential("capture", self.capture.rewards, values, rewards)
            self._vote.vitals.note_generation(values)
            self._push(values, Kind.GENERATION)

    @fails_open(nullcontext)
    @contextmanager
    def scoring(self, func: str) -> Iterator[None]:
        """Time the call of a reward function, count it as failed when it raises: `with agent.scoring("accuracy"):`."""
        self.enter(Phase.REWARD)
        try:
            with self.observer.rewards.calls.measure(arguments.text(func)):
                yield
        except BaseException as error:
            self._note_raised(error)
            raise
        finally:
            self.leave(Phase.REWARD)

    @fails_open()
    def observe_model(
        self, name: str, model: torch.nn.Module, *, output: Any = None, adapters: bool | None = None
    ) -> None:
        """Look at the state of a reward model, or of the reference model (then `name` is "reference").

        Modes, dropout, trainable parameters, dtypes, devices, adapters, the head's bias; with `output`, what its pass
        returned, whether that keeps its graph. `adapters` says whether adapters should be on. To be called where its
        pass is made; thinned like other costly probes.
        """
        model = arguments.kind_of(self.guard, "observe_model(model", model, torch.nn.Module, "give a torch.nn.Module")
        if model is not None and self.observer.recording and self.observer.full:
            details = {"scores": output, "adapters": adapters}
            known = self.guard.run("reward model", observe_model, arguments.text(name), model, **details)
            self.observer.known(known or {})

    @fails_open()
    def observe_policy(self, **tensors: Any) -> None:
        """Look at one micro-batch as it is trained on; see `probes.policy.observe` for the names.

        `loss` alone will do: a number, or a tensor of one, for which nothing waits.
        """
        self._begin()
        if self.observer.recording:
            tensors = arguments.known(self.guard, "observe_policy", tensors, POLICY_NAMES)
            tensors = arguments.tensors(self.guard, "observe_policy", tensors, POLICY_TENSORS)
            if "loss" in tensors:
                remedy = "give the micro-batch's mean loss"
                tensors["loss"] = arguments.scalar(
                    self.guard, "observe_policy(loss", tensors["loss"], remedy, signed=True
                )
            self.guard.run("policy", self.observer.policy, tensors)
            if self.capture is not None:
                self.guard.run("capture", self.capture.recent.policy, self.step, tensors)

    @fails_open(bare=True)
    def observe_gradients(self, norm: torch.Tensor | float | None = None, *, clip_limit: float | None = None) -> None:
        """Look at the gradients before clipping, then vote on this step's update.

        `norm` is the global pre-clip L2 norm where the trainer knows it; else the local one stands in. To be called on
        all ranks, after the last backward of the step and before the optimizer's step. A loop that clips calls
        `look_at_gradients()` before that, and this with the norm that clipping gave.
        """
        if not self._looked:
            self.look_at_gradients(clip_limit=clip_limit)
        self.take_norm(norm)
        self.vote()

    @fails_open()
    def look_at_gradients(self, *, clip_limit: float | None = None) -> None:
        """Read the gradients as they are now (integrations: before clipping), without voting."""
        self._begin()
        self._looked = True
        remedy = "give the largest norm that is let through unclipped, or nothing"
        clip_limit = arguments.scalar(self.guard, "look_at_gradients(clip_limit", clip_limit, remedy)
        if self.observer.recording:
            self.guard.run("gradient", self.observer.gradients, clip_limit)
            if self.capture is not None:
                self.guard.essential("capture", self.capture.before_clipping)

    @fails_open()
    def take_norm(self, norm: torch.Tensor | float | None) -> None:
        """Keep the trainer's own pre-clip norm for the vote."""
        norm = arguments.scalar(self.guard, "observe_gradients(norm", norm, "give the pre-clip norm, or nothing")
        if norm is not None:
            self._vote.norm = norm

    @fails_open()
    def observe_optimizer(self, **details: Any) -> None:
        """Give what the optimizer hooks cannot know: `scaler`, `engine`, `scheduler` or `learning_rate_expected`."""
        details = arguments.known(self.guard, "observe_optimizer", details, _OPTIMIZER_NAMES)
        for name, method in (("scaler", "is_enabled"), ("scheduler", "get_last_lr")):
            value = details.get(name)
            if value is not None and not callable(getattr(value, method, None)):
                place = f"observe_optimizer({name}"
                self.guard.refuse(place, f"{place}={arguments.shown(value)}): it has no {method}(), it is left out")
                del details[name]
        rate = "learning_rate_expected"
        if details.get(rate) is not None:
            details[rate] = arguments.scalar(self.guard, f"observe_optimizer({rate}", details[rate], "give a number")
        self.observer.optimizer_details.update(details)
        scaler = details.get("scaler")
        if scaler is not None:
            self.core.scaled = bool(self.guard.run("scaler", scaler.is_enabled))
