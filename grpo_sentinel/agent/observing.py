"""Between the agent and the probes: hands tensors over under the probes' own names and gathers what comes back.

One `Readback` per kind of record. On the CPU a step's record is complete at its end; on a device it is harvested one
step later, so that nothing waits for the copy.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from grpo_sentinel.agent.activation_steps import ActivationSteps
from grpo_sentinel.agent.guard import Guard, Unusable
from grpo_sentinel.agent.local_steps import LocalSteps
from grpo_sentinel.agent.naming import Naming
from grpo_sentinel.agent.probes import data as data_probe
from grpo_sentinel.agent.probes import gradient as gradient_probe
from grpo_sentinel.agent.probes import policy as policy_probe
from grpo_sentinel.agent.probes.carried import CarriedWatch
from grpo_sentinel.agent.probes.live_tensors import LiveTensors
from grpo_sentinel.agent.probes.memory import MemoryProbe
from grpo_sentinel.agent.probes.pack import Harvest
from grpo_sentinel.agent.probes.samples import blamed
from grpo_sentinel.agent.reward_reading import RewardReader
from grpo_sentinel.agent.settings import Settings
from grpo_sentinel.agent.step_packs import StepPacks, alone
from grpo_sentinel.agent.update_probes import UpdateProbes
from grpo_sentinel.agent.watched import Watched, own_norm

_DATA_NAMES = {
    "prompt_ids": "prompt_ids_BP",
    "prompt_mask": "prompt_mask_BP",
    "completion_ids": "completion_ids_BC",
    "completion_mask": "completion_mask_BC",
    "input_ids": "input_ids_BT",
    "attention_mask": "attention_mask_BT",
    "advantages": "advantages_B",
    "weight_versions": "weight_versions",
}
_DATA_NUMBERS = ("weight_version", "stale_dropped")
DATA_NAMES, DATA_NUMBERS = _DATA_NAMES.keys(), _DATA_NUMBERS
POLICY_NAMES = inspect.signature(policy_probe.observe).parameters.keys()
POLICY_TENSORS = frozenset(name for name in POLICY_NAMES if "_B" in name or name == "advantages")
REWARD_NAMES = frozenset(
    {"func_names", "extra", "identify", "weights", "group_size", "completion_lengths_B", "completions_B", "prompts_B"}
    | {"sources_B"}
)
_POLICY_PROFILE = ("completion_ids_BT",)  # repetition: two sorts per row, and no bound rests on it
_DATA_CONTEXT = ("vocab_size", "pad_id", "eos_id", "unk_id", "max_prompt_length", "max_completion_length", "group_size")
_UNFIT = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    RuntimeError,
)  # what values of a wrong kind or shape raise
_LOOK_AGAIN = 16  # steps between looks for parameters that have come or gone
_SAMPLE_SIZE = 8192  # elements for the percentiles of |g|
_POLICY_CONTEXT = (
    "epsilon_low",
    "epsilon_high",
    "beta",
    "vocab_size",
    "group_size",
    "scale_rewards",
    "importance_sampling_level",
    "sampling_cap",
    "sampling_level",
)
CONTEXT_NAMES = frozenset({*_DATA_CONTEXT, *_POLICY_CONTEXT, "max_grad_norm"})


class Observer:
    """Keeps what is watched, calls the probes, holds their packs until the record goes out."""

    def __init__(self, settings: Settings, guard: Guard, *, recording: bool = True, ring: Path | None = None) -> None:
        """Without `recording` (no ring) nothing is read but what the vote needs."""
        self.recording = recording
        self.tell: Callable[[str, dict[str, Any]], None] = _nobody  # sends an event
        self.full = True  # the costly probes run in this step
        self.generation = 0
        self.micro_batch = 0
        self.model = Watched()
        self.completion_tokens = 0.0
        self.optimizer_details: dict[str, Any] = {}
        self.rewards = RewardReader(guard, lambda kind, body: self.tell(kind, body))
        self._settings = settings
        self._guard = guard
        self._context: dict[str, Any] = {}
        self._step = StepPacks(guard)
        self._flight: tuple[int, dict[str, float], bool, StepPacks] | None = None
        self._micro_batches = 0  # of the present step
        self._data_tally = data_probe.Tally()
        self.gradient: gradient_probe.GradientPack | None = None
        self._updates = UpdateProbes()
        self._memory = MemoryProbe(None if ring is None else ring.parent)
        self._live = LiveTensors()
        self.naming = Naming()
        self._steps = 0
        self._local = LocalSteps(
            guard, always=settings.local_gradients == "always", steps=settings.local_gradient_steps
        )
        self._carried = CarriedWatch()
        self._votes = 0
        self._activations = ActivationSteps(settings.activations_every, guard)

    def watched(self) -> tuple[Sequence[tuple[str, torch.nn.Parameter]], torch.optim.Optimizer | None]:
        """Give the watched parameters by name, and the innermost optimizer: for evidence."""
        return self.model.parameters, self._updates.newest

    @property
    def must_wait(self) -> bool:
        """Tell whether a harvest now would wait for a device."""
        device = self.model.device
        return device is not None and device.type != "cpu"

    def configure(self, context: Mapping[str, Any]) -> None:
        """Take the trainer's configuration; probes get the part they know."""
        self._context.update(context)

    def watch(
        self,
        model: torch.nn.Module | None,
        optimizers: Sequence[Any] | None,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None,
        replicated: bool | None,
    ) -> None:
        """Take the parameters to look at, by name; `replicated`: every rank holds the same ones."""
        self.model.take(model, named_parameters, replicated)
        self._arm_activations()
        self._updates.watch(optimizers or (), replicated=self.model.replicated)
        self._guard.run("carried gradients", self._watch_carried)

    def _watch_carried(self) -> None:
        """Only where `.grad` is the trainer's: shards and engines keep gradients elsewhere between steps."""
        if self.recording and not self.model.sharded and self.model.source is None:
            self._carried.arm([parameter for _, parameter in self.model.parameters])

    def _arm_activations(self) -> None:
        if self.recording and self.model.model is not None:
            self._activations.begin(self.model.model, self.tell)

    # ---- layers

    def data(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Read one micro-batch; the values are of all micro-batches of the step so far. Synchronises once."""
        self.micro_batch, self._micro_batches = self._micro_batches, self._micro_batches + 1
        self._local.border()
        known = {_DATA_NAMES[name]: value for name, value in batch.items() if name in _DATA_NAMES}
        known.update({name: batch[name] for name in _DATA_NUMBERS if name in batch})
        others = {
            name: value
            for name, value in batch.items()
            if name not in (*_DATA_NAMES, *_DATA_NUMBERS) and isinstance(value, torch.Tensor)
        }
        before = self._data_tally.samples
        try:
            pack = data_probe.observe(
                **known,
                others=others,
                model_device=self.model.device,
                so_far=self._data_tally,
                **self._known(_DATA_CONTEXT),
            )
            harvest = alone([pack])
        except _UNFIT as error:
            raise Unusable(f"observe_data: {_first_line(error)}; this micro-batch is not judged") from error
        values = harvest.values
        for body in self.naming.changed(harvest.subjects, values, self._steps):
            self.tell("named", body)
        if harvest.samples:
            for body in blamed(harvest.samples, before, batch.get("prompt_ids", batch.get("input_ids"))):
                self.tell("sample", {**body, "micro_batch": self.micro_batch})
        self.completion_tokens = values.get("data.completion_tokens", 0.0)
        return values

    def groups(self, prompts: Sequence[object], completions: Sequence[object]) -> Mapping[str, float]:
        """Judge the groups of a generation batch on the host."""
        return self.rewards.groups(prompts, completions, self._context.get("group_size"))

    def scores(self, rewards: Any, details: dict[str, Any]) -> dict[str, float]:
        """Read one generation batch's raw rewards. Synchronises once."""
        details.setdefault("group_size", self._context.get("group_size"))
        try:
            return self.rewards.read(rewards, details)
        except _UNFIT as error:
            raise Unusable(
                f"observe_rewards: no scores ({_first_line(error)}); give a tensor (B x F) or a dict of B scores"
            ) from error

    def known(self, values: Mapping[str, float]) -> None:
        """Add numbers that the trainer itself knows to the record of the present step."""
        self._step.add(values)

    def policy(self, tensors: Mapping[str, Any]) -> None:
        """Read one micro-batch's log-probs and loss; harvested with the step."""
        self._local.border()
        if not self.full:
            tensors = {name: tensor for name, tensor in tensors.items() if name not in _POLICY_PROFILE}
        try:
            pack = policy_probe.observe(**{**self._known(_POLICY_CONTEXT), **tensors})
        except _UNFIT as error:
            raise Unusable(f"observe_policy: {_first_line(error)}; this micro-batch is not judged") from error
        self._step.add(pack)

    def gradients(self, clip_limit: float | None) -> None:
        """Read every gradient as it is now; harvested with the step."""
        limit = self._context.get("max_grad_norm") if clip_limit is None else clip_limit
        size = _SAMPLE_SIZE if self.full else 0
        options: dict[str, Any] = {"clip_limit": limit, "sharded": self.model.sharded, "sample_size": size}
        source = self.model.source
        if source is None:
            self.gradient = gradient_probe.observe(self.model.parameters, **options)
        else:
            self.gradient = gradient_probe.observe_tensors(source.gradients(), scale=source.scale(), **options)
        self._step.add(self.gradient)

    def norm_and_digest(self, norm: torch.Tensor | float | None) -> tuple[float | None, int]:
        """Read the norm to judge, and the digest of the parameters when replicas can be compared: one copy."""
        if norm is None:
            norm = self.gradient.norm if self.gradient is not None else own_norm(self.model.gradients())
        digest = self._guard.run("digest", self._digest)
        if digest is None:
            return (None if norm is None else float(norm)), 0
        if not isinstance(norm, torch.Tensor):
            return norm, int(digest.item()) + 1
        both = torch.stack([norm.detach().reshape(()).to(digest.device, torch.float64), digest.reshape(()).double()])
        value, bits = both.tolist()
        return value, int(bits) + 1

    def _digest(self) -> torch.Tensor | None:
        if not self.model.replicated:
            return None
        self._votes += 1
        if not self.full or (self._votes - 1) % self._settings.vote_every:
            return None
        return self._updates.digest()

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember what the optimizer is about to change."""
        if self.full:
            self._updates.before(optimizer)

    def after_update(self, optimizer: torch.optim.Optimizer | None, *, skipped: bool) -> None:
        """See what it did. None: it was not called in this step; look at the one that is watched, if any."""
        details = self.optimizer_details
        self._step.add(self._updates.after(optimizer, self.model.parameters, details, skipped=skipped, full=self.full))

    def arm_local_gradients(self) -> None:
        """Watch this rank's own gradients from the next backward on."""
        if self.model.parameters and self.recording:
            self._local.arm(self.model.parameters)

    # ---- the record of a step

    def collect(self) -> None:
        """Add what is read once per step."""
        if not self.recording:
            return
        self._step.add(self._local.take())
        self._step.add(self._guard.run("carried gradients", self._carried.pack))
        self._step.add(self._activations.take())
        self._step.add(self._guard.run("memory", self._memory.observe))
        every = self._settings.live_tensors_every
        if every and self._steps % every == 0:
            self._step.add(self._guard.run("live tensors", self._count_live_tensors))
        self._steps += 1
        if self._steps % _LOOK_AGAIN == 0:
            self._guard.run("parameters", self._look_for_other_parameters)

    def _look_for_other_parameters(self) -> None:
        """Adapters come and go."""
        changed = self.model.look_again()
        if changed is not None:
            self.tell("note", {"what": "parameters_changed", **changed})
            self._watch_carried()

    def _count_live_tensors(self) -> dict[str, float]:
        started = time.perf_counter()
        values, growers = self._live.observe()
        if growers:
            self.tell("live_tensors", {"top": growers[0].name, "growers": [asdict(grower) for grower in growers]})
        self._guard.exempt(time.perf_counter() - started)  # asked for: no reason to thin the other probes
        return values

    def harvest(self) -> Harvest:
        """Wait for this step's packs."""
        return self._step.harvest()

    def depart(self, step: int, values: dict[str, float], by_scaler: bool) -> None:
        """Start this step's copy and keep it in flight with what else its record needs."""
        self._step.start()
        self._flight = (step, values, by_scaler, self._step)
        self._step = StepPacks(self._guard)

    def landed(self) -> tuple[int, dict[str, float], bool, Harvest] | None:
        """Give the step in flight, complete; None when there is none."""
        flight, self._flight = self._flight, None
        return None if flight is None else (*flight[:3], flight[3].harvest())

    def next_step(self) -> None:
        """Forget the step."""
        self.micro_batch = 0
        self._micro_batches = 0
        self._data_tally = data_probe.Tally()
        self.gradient = None
        self._arm_activations()

    def close(self) -> None:
        """Take hooks off and let go of the model."""
        self._local.close()
        self._carried.disarm()
        self._activations.close()
        self.model.forget()
        self._updates, self.gradient = UpdateProbes(), None

    def _known(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: self._context[name] for name in names if self._context.get(name) is not None}


def _nobody(kind: str, body: dict[str, Any]) -> None:
    """Drop an event that nobody sends."""


def _first_line(error: Exception) -> str:
    return f"{error}".partition("\n")[0][:200] or type(error).__name__
