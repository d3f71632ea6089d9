"""Between the agent and the probes: hands tensors over under the probes' own names and gathers what comes back.

One `Readback` per kind of record. On the CPU a step's record is complete at its end; on a device it is harvested one
step later, so that nothing waits for the copy.
"""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from grpo_sentinel.agent.activation_steps import ActivationSteps
from grpo_sentinel.agent.guard import Guard, Unusable
from grpo_sentinel.agent.naming import Naming
from grpo_sentinel.agent.probes import data as data_probe
from grpo_sentinel.agent.probes import gradient as gradient_probe
from grpo_sentinel.agent.probes import policy as policy_probe
from grpo_sentinel.agent.probes import reward as reward_probe
from grpo_sentinel.agent.probes.carried import CarriedWatch
from grpo_sentinel.agent.probes.groups import digest, observe_groups
from grpo_sentinel.agent.probes.live_tensors import LiveTensors
from grpo_sentinel.agent.probes.local_watch import LocalWatch
from grpo_sentinel.agent.probes.memory import MemoryProbe
from grpo_sentinel.agent.probes.pack import Harvest
from grpo_sentinel.agent.probes.samples import blamed
from grpo_sentinel.agent.probes.scores import score_matrix
from grpo_sentinel.agent.probes.sources import copies_of_shards
from grpo_sentinel.agent.readback import Readback
from grpo_sentinel.agent.settings import Settings
from grpo_sentinel.agent.step_packs import StepPacks, alone
from grpo_sentinel.agent.update_probes import UpdateProbes
from grpo_sentinel.sanitize import sanitized_totals

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


class GradientSource(Protocol):
    """Where an engine keeps this rank's gradients between its backward and its step."""

    def gradients(self) -> Sequence[tuple[str, Any]]: ...

    def scale(self) -> float:
        """What the engine has multiplied them by."""
        ...


class Observer:
    """Keeps what is watched, calls the probes, holds their packs until the record goes out."""

    def __init__(self, settings: Settings, guard: Guard, *, recording: bool = True, ring: Path | None = None) -> None:
        """Without `recording` (no ring) nothing is read but what the vote needs."""
        self.recording = recording
        self.tell: Callable[[str, dict[str, Any]], None] = _nobody  # sends an event
        self.full = True  # the costly probes run in this step
        self.generation = 0
        self.micro_batch = 0
        self.replicated = False
        self.source: GradientSource | None = None  # of an engine that does not keep gradients in `.grad`
        self.sharded = False  # this rank holds a part of the gradients only ...
        self.copies = 1  # ... and so many ranks hold the same part; 0 where that differs between parameters
        self.completion_tokens = 0.0
        self.optimizer_details: dict[str, Any] = {}
        self.reward_calls = reward_probe.CallMeter()
        self._settings = settings
        self._guard = guard
        self._context: dict[str, Any] = {}
        self._parameters: list[tuple[str, torch.nn.Parameter]] = []
        self.device: torch.device | None = None
        self._step = StepPacks(guard)
        self._flight: tuple[int, dict[str, float], bool, StepPacks] | None = None
        self._micro_batches = 0  # of the present step
        self._data_tally = data_probe.Tally()
        self.gradient: gradient_probe.GradientPack | None = None
        self._updates = UpdateProbes()
        self._memory = MemoryProbe(None if ring is None else ring.parent)
        self._live = LiveTensors()
        self.naming = Naming()
        self._model: weakref.ref[torch.nn.Module] | None = None  # whose parameters these are, if all of them
        self._steps = 0
        self._reward_history = reward_probe.History()
        self._local = LocalWatch()
        self._carried = CarriedWatch()
        self._local_steps_left = 0
        self._votes = 0
        self._activations = ActivationSteps(settings.activations_every, guard)

    def watched(self) -> tuple[Sequence[tuple[str, torch.nn.Parameter]], torch.optim.Optimizer | None]:
        """Give the watched parameters by name, and the innermost optimizer: for evidence."""
        return self._parameters, self._updates.newest

    @property
    def must_wait(self) -> bool:
        """Tell whether a harvest now would wait for a device."""
        return self.device is not None and self.device.type != "cpu"

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
        if named_parameters is None and model is not None:
            named_parameters, self._model = model.named_parameters(), weakref.ref(model)
        if named_parameters is not None:
            self._parameters = [(name.removeprefix("module."), parameter) for name, parameter in named_parameters]
            self.device = next((parameter.device for _, parameter in self._parameters), None)
        self.replicated = _is_replicated(model) if replicated is None else replicated
        self.sharded = self.sharded or _is_sharded(model, self._parameters)
        self.copies = copies_of_shards(model, self._parameters) if self.sharded else 1
        self._arm_activations()
        self._updates.watch(optimizers or (), replicated=self.replicated)
        self._guard.run("carried gradients", self._watch_carried)

    def _watch_carried(self) -> None:
        """Only where `.grad` is the trainer's: shards and engines keep gradients elsewhere between steps."""
        if self.recording and not self.sharded and self.source is None:
            self._carried.arm([parameter for _, parameter in self._parameters])

    def _arm_activations(self) -> None:
        if self.recording and self._model is not None:
            self._activations.begin(self._model(), self.tell)

    # ---- layers

    def data(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Read one micro-batch; the values are of all micro-batches of the step so far. Synchronises once."""
        self.micro_batch, self._micro_batches = self._micro_batches, self._micro_batches + 1
        self._border()
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
                model_device=self.device,
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

    def _border(self) -> None:
        """Let the hooks know that another micro-batch has begun; twice for the same one does no harm."""
        if self._local_steps_left > 0:
            self._guard.run("local gradients", self._local.micro_batch)

    def groups(self, prompts: Sequence[object], completions: Sequence[object]) -> dict[str, float]:
        """Judge the groups of a generation batch on the host."""
        size = self._context.get("group_size")
        return observe_groups(prompts, completions, group_size=size) if size else {}

    def rewards(self, rewards: Any, details: dict[str, Any]) -> dict[str, float]:
        """Read one generation batch's raw rewards. Synchronises once."""
        try:
            return self._rewards(rewards, details)
        except _UNFIT as error:
            raise Unusable(
                f"observe_rewards: no scores ({_first_line(error)}); give a tensor (B x F) or a dict of B scores"
            ) from error

    def _rewards(self, rewards: Any, details: dict[str, Any]) -> dict[str, float]:
        names, extra = details.pop("func_names", None), details.pop("extra", None) or {}
        identify = details.pop("identify", None)
        details.setdefault("group_size", self._context.get("group_size"))
        prompts, size = details.get("prompts_B"), details["group_size"]
        scores, given = score_matrix(rewards)
        self._whole_groups(len(scores), size)
        names = given or names or [f"reward{index}" for index in range(scores.shape[-1])]
        readback = Readback()
        readback.add(reward_probe.observe(scores, names, history=self._reward_history, **details))
        if prompts is not None and size:
            identify = identify or (lambda row: {"prompt_digest": digest(prompts[row])})
            both = prompts, details.get("completions_B")
            extra = {**(self._guard.run("groups", observe_groups, *both, group_size=size) or {}), **extra}
        harvest = readback.harvest()
        for body in blamed(harvest.samples, 0, None, identify):
            self.tell("sample", body)
        return {**harvest.values, **self.reward_calls.harvest(), **_sanitized(), **extra}

    def _whole_groups(self, rows: int, size: Any) -> None:
        if size and rows % size:
            self._guard.refuse(
                "observe_rewards(group_size",
                f"observe_rewards(rewards={rows} scores, group_size={size}): no whole number of groups, so the groups "
                "are not judged; give all completions of every prompt, those of one prompt side by side",
            )

    def known(self, values: Mapping[str, float]) -> None:
        """Add numbers that the trainer itself knows to the record of the present step."""
        self._step.add(values)

    def policy(self, tensors: Mapping[str, Any]) -> None:
        """Read one micro-batch's log-probs and loss; harvested with the step."""
        self._border()
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
        options: dict[str, Any] = {"clip_limit": limit, "sharded": self.sharded, "sample_size": size}
        if self.source is None:
            self.gradient = gradient_probe.observe(self._parameters, **options)
        else:
            self.gradient = gradient_probe.observe_tensors(
                self.source.gradients(), scale=self.source.scale(), **options
            )
        self._step.add(self.gradient)

    def norm_and_digest(self, norm: torch.Tensor | float | None) -> tuple[float | None, int]:
        """Read the norm to judge, and the digest of the parameters when replicas can be compared: one copy."""
        if norm is None:
            norm = self.gradient.norm if self.gradient is not None else own_norm(self.held())
        digest = self._guard.run("digest", self._digest)
        if digest is None:
            return (None if norm is None else float(norm)), 0
        if not isinstance(norm, torch.Tensor):
            return norm, int(digest.item()) + 1
        both = torch.stack([norm.detach().reshape(()).to(digest.device, torch.float64), digest.reshape(()).double()])
        value, bits = both.tolist()
        return value, int(bits) + 1

    def held(self) -> Iterable[tuple[str, Any]]:
        if self.source is not None:
            return self.source.gradients()
        return ((name, parameter.grad) for name, parameter in self._parameters)

    def _digest(self) -> torch.Tensor | None:
        if not self.replicated:
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
        self._step.add(self._updates.after(optimizer, self._parameters, details, skipped=skipped, full=self.full))

    def drop_gradients(self) -> None:
        """Take every gradient away."""
        for _, parameter in self._parameters:
            parameter.grad = None

    def arm_local_gradients(self) -> None:
        """Watch this rank's own gradients from the next backward on."""
        if not self._parameters or not self.recording:
            return
        if self._local_steps_left <= 0:
            self._local.arm(self._parameters)
        self._local_steps_left = self._settings.local_gradient_steps + 1  # one for the present step, which is over

    # ---- the record of a step

    def collect(self) -> None:
        """Add what is read once per step."""
        if not self.recording:
            return
        if self._local_steps_left > 0:
            self._guard.run("local gradients", self._take_local_gradients)
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
        """Take the model's parameters again where they are not the same any more: adapters come and go."""
        model = None if self._model is None else self._model()
        if model is None:
            return
        found = [(name.removeprefix("module."), parameter) for name, parameter in model.named_parameters()]
        before = {id(parameter): name for name, parameter in self._parameters}
        now = {id(parameter): name for name, parameter in found}
        if before.keys() == now.keys():
            return
        added = [name for key, name in now.items() if key not in before]
        gone = [name for key, name in before.items() if key not in now]
        counts = {"added": added[:8], "gone": gone[:8], "added_count": len(added), "gone_count": len(gone)}
        self.tell("note", {"what": "parameters_changed", **counts})
        self._parameters = found
        self._watch_carried()

    def _count_live_tensors(self) -> dict[str, float]:
        started = time.perf_counter()
        values, growers = self._live.observe()
        if growers:
            self.tell("live_tensors", {"top": growers[0].name, "growers": [asdict(grower) for grower in growers]})
        self._guard.exempt(time.perf_counter() - started)  # asked for: no reason to thin the other probes
        return values

    def _take_local_gradients(self) -> None:
        self._step.add(self._local.pack())
        self._guard.charge(self._local.take_seconds())  # the hooks run inside the trainer's backward, outside the guard
        if self._settings.local_gradients != "always":
            self._local_steps_left -= 1
        if self._local_steps_left <= 0:
            self._local.disarm()

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
        if self._local_steps_left > 0:
            self._local.disarm()
        self._carried.disarm()
        self._activations.close()
        self._parameters, self._updates, self.gradient = [], UpdateProbes(), None
        self._model = None

    def _known(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: self._context[name] for name in names if self._context.get(name) is not None}


def _nobody(kind: str, body: dict[str, Any]) -> None:
    """Drop an event that nobody sends."""


def own_norm(named_gradients: Iterable[tuple[str, Any]]) -> torch.Tensor | None:
    """Compute the L2 norm of the gradients that this rank holds; None without any. Never synchronises."""
    gradients = [g.detach() for _, g in named_gradients if g is not None and not g.is_sparse]
    local = [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
    if not local:
        return None
    norms = torch._foreach_norm(local, 2, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.stack([norm.double().to(norms[0].device) for norm in norms]))


def _sanitized() -> dict[str, float]:
    """What `sanitize_rewards()` has changed in this process, by function."""
    return {f"reward.func_sanitized[{name}]": float(count) for name, count in sanitized_totals().items()}


def _is_replicated(model: torch.nn.Module | None) -> bool:
    return isinstance(model, torch.nn.parallel.DistributedDataParallel)


def _is_sharded(model: torch.nn.Module | None, parameters: Sequence[tuple[str, torch.nn.Parameter]]) -> bool:
    """FSDP1 by its wrapper, anywhere inside the model; FSDP2 by its DTensors."""
    wrapped = model is not None and any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules())
    return wrapped or any(hasattr(parameter, "to_local") for _, parameter in parameters)


def _first_line(error: Exception) -> str:
    return f"{error}".partition("\n")[0][:200] or type(error).__name__
