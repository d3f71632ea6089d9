"""Policy layer: activations of a few layers in the training forward, at a long cadence and only when asked for.

    block                 largest |output| against the largest number of its dtype; NaN or infinity
    activation function   standard deviation of its inputs; units (last axis) that next to never are above 0
    router                tokens per expert

Hooks are there for the steps that are looked at only. What they see is reduced on the spot: no activation is kept,
copied whole or changed, and nothing waits. Of inputs and units at most 512 positions of a call are read, evenly spaced,
padding among them; peaks and experts are of all positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo_sentinel.agent.probes.flat import local, plain_name
from grpo_sentinel.agent.probes.layers_to_watch import Watched
from grpo_sentinel.agent.probes.pack import Harvest, Pack, Part, vector
from grpo_sentinel.stats import Moments

_POSITIONS = 512
_SELDOM = 0.01  # a unit above 0 at fewer positions than this is dead (SageMaker Debugger, DeadRelu)


@dataclass(frozen=True, slots=True)
class _Call:
    """What the host knows of one look at one module, besides its numbers."""

    kind: str  # peak | inputs | units | experts
    name: str
    size: float  # peak: largest number of the dtype; inputs: elements read; else nothing
    numbers: int


@dataclass(slots=True)
class _Units:
    """Positions at which each unit was above 0, added up over calls."""

    above: torch.Tensor
    positions: int


@dataclass(slots=True)
class _Seen:
    calls: list[tuple[_Call, torch.Tensor]] = field(default_factory=list)
    units: dict[str, _Units] = field(default_factory=dict)
    experts: dict[str, torch.Tensor] = field(default_factory=dict)


class ActivationWatch:
    """Arms hooks and takes them off again; keeps sums of its own in between, no tensor of the user."""

    def __init__(self, run: Callable[..., Any]) -> None:
        """`run(function, *arguments)` keeps a failure of the hooks from the forward."""
        self._run = run
        self._handles: list[Any] = []
        self._seen = _Seen()

    @property
    def armed(self) -> bool:
        """Tell whether hooks are registered."""
        return bool(self._handles)

    def arm(self, watched: Watched) -> None:
        """Register the hooks; arming twice changes nothing. They look at forwards with autograd only."""
        if self._handles:
            return
        for name, module in watched.blocks:
            self._hook(module, self._block, plain_name(name))
        for name, module in watched.activations:
            self._hook(module, self._activation, plain_name(name))
        for name, router in watched.routers:
            self._hook(router.module, self._router, plain_name(name), router.experts, router.chosen)

    def disarm(self) -> None:
        """Take the hooks off and forget what they saw."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._seen = [], _Seen()

    def pack(self) -> Pack | None:
        """Hand over what the hooks saw since the last call; None when none fired. Never synchronises."""
        seen, self._seen = self._seen, _Seen()
        with torch.no_grad():
            for name, units in seen.units.items():
                dead = (units.above < _SELDOM * units.positions).float().mean()
                seen.calls.append((_Call("units", name, 0.0, 1), dead))
            for name, load in seen.experts.items():
                numbers = torch.stack([load.amax(), load.mean(), (load == 0).float().mean()])
                seen.calls.append((_Call("experts", name, 0.0, 3), numbers))
            if not seen.calls:
                return None
            return Pack(
                "activations", vector([x for _, x in seen.calls]), finish, tuple(call for call, _ in seen.calls)
            )

    def _hook(self, module: torch.nn.Module, look: Callable[..., None], *given: Any) -> None:
        def after(_: torch.nn.Module, inputs: Any, output: Any) -> None:
            if torch.is_grad_enabled():
                self._run(_without_autograd, look, inputs, output, *given)

        self._handles.append(module.register_forward_hook(after))

    def _block(self, inputs: Any, output: Any, name: str) -> None:
        out = _first(output)
        if out is not None:
            call = _Call("peak", name, torch.finfo(out.dtype).max, 1)
            self._seen.calls.append((call, torch.stack(torch.aminmax(out)).abs().amax()))

    def _activation(self, inputs: Any, output: Any, name: str) -> None:
        given, out = _first(inputs), _first(output)
        if given is None or out is None or out.dim() == 0:
            return
        rows = _some(given)
        wide = rows.float()
        mean = wide.mean()
        variance = (wide - mean).square().mean()  # on the CPU a tenth of the time of var_mean
        self._seen.calls.append((_Call("inputs", name, float(rows.numel()), 2), torch.stack([mean, variance])))
        rows = _some(out)
        above = (rows > 0).sum(0).float()
        units = self._seen.units.get(name)
        if units is None or units.above.shape != above.shape:
            self._seen.units[name] = _Units(above, len(rows))
        else:
            units.above += above
            units.positions += len(rows)

    def _router(self, inputs: Any, output: Any, name: str, experts: int, chosen: int) -> None:
        found = output if isinstance(output, tuple | list) else (output,)
        tensors = [local(one) for one in found if isinstance(one, torch.Tensor) and one.dim() > 1]
        places = next((t for t in tensors if not (t.dtype.is_floating_point or t.dtype.is_complex)), None)
        if places is None:
            logits = next((t for t in tensors if t.shape[-1] == experts), None)
            if logits is None:
                return
            places = logits.topk(min(chosen, experts), dim=-1).indices
        flat = places.reshape(-1).long()
        load = torch.zeros(experts, device=flat.device).index_add_(0, flat, torch.ones_like(flat, dtype=torch.float32))
        before = self._seen.experts.get(name)
        self._seen.experts[name] = load if before is None else before + load


def _without_autograd(look: Callable[..., None], *given: Any) -> None:
    with torch.no_grad():
        look(*given)


def _first(value: Any) -> torch.Tensor | None:
    """Give the first tensor of floats that can be read: of a tensor, a tuple or a ModelOutput."""
    for one in value if isinstance(value, tuple | list) else (value,):
        if isinstance(one, torch.Tensor) and one.dtype.is_floating_point and one.layout is torch.strided:
            here = local(one)
            return None if here.is_meta or not here.numel() else here
    return None


def _some(tensor: torch.Tensor) -> torch.Tensor:
    """View at most 512 evenly spaced positions: P x U units."""
    rows = tensor.reshape(-1, tensor.shape[-1])
    return rows[:: -(-len(rows) // _POSITIONS)]


def finish(parts: Sequence[Part]) -> Harvest:
    """Turn the looks of a step into signals: the worst module of each kind, and its name."""
    peaks: dict[str, float] = {}
    inputs: dict[str, Moments] = {}
    dead: dict[str, float] = {}
    loads: dict[str, float] = {}
    unused: dict[str, float] = {}
    for part in parts:
        pieces = part.values.split_with_sizes([call.numbers for call in part.meta])
        for call, numbers in zip(part.meta, pieces, strict=True):
            values = numbers.tolist()
            if call.kind == "peak":
                share = values[0] / call.size
                peaks[call.name] = share if math.isnan(share) else max(peaks.get(call.name, 0.0), share)
            elif call.kind == "inputs" and math.isfinite(values[1]):
                mean, variance = values
                moments = Moments(call.size, mean, variance * call.size, mean, mean)
                inputs[call.name] = inputs.get(call.name, Moments()).merge(moments)
            elif call.kind == "units":
                dead[call.name] = values[0]
            elif call.kind == "experts" and values[1]:
                loads[call.name], unused[call.name] = values[0] / values[1], values[2]
    out: dict[str, float] = {}
    subjects: dict[str, str] = {}
    if peaks:
        bad = [name for name, share in peaks.items() if not math.isfinite(share)]
        out["policy.activation_nonfinite"] = float(len(bad))
        if bad:
            subjects["policy.activation_nonfinite"] = ", ".join(bad)
    worst = {
        "policy.activation_range_ratio": {name: share for name, share in peaks.items() if math.isfinite(share)},
        "policy.dead_unit_ratio": dead,
        "policy.expert_load_ratio": loads,
        "policy.expert_unused_ratio": unused,
    }
    for signal, found in worst.items():
        if found:
            subjects[signal] = name = max(found, key=found.__getitem__)
            out[signal] = found[name]
    spreads = [moments.std(population=True) or 0.0 for moments in inputs.values()]
    if spreads:
        out["policy.activation_std_min"] = min(spreads)
        if len(spreads) > 1 and min(spreads) > 0:
            out["policy.activation_std_ratio"] = max(spreads) / min(spreads)
    return Harvest(out, subjects=subjects)
