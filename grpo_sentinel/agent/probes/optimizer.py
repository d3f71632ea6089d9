"""Optimizer layer: what one step did to the weights, and the state of weights and moments after it.

    exact, every step         norm, largest element and non-finite state of every weight tensor (one pass)
    exact, every `full_every` non-finite moments
    hashed sample             update norm, moment norms, unchanged tensors, updates swallowed by bf16, digest
    the same, `full_every`    deviation of every weight and moment tensor, gradients far above their second moment

The sample holds at least `sample_per_tensor` elements of every tensor and more of the large ones, at fixed positions. A
norm of n sampled elements estimates that of all with a relative standard error near sqrt((kurtosis - 1) / 4n): about
1 % for Gaussian updates at n = 5000.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grpo_sentinel.agent.probes import norms, optimizer_facts, sample
from grpo_sentinel.agent.probes.flat import flat, plain_name
from grpo_sentinel.agent.probes.optimizer_finish import Layout, finish
from grpo_sentinel.agent.probes.pack import Pack, vector, wide_dtype

_EXTRA_ROWS = 128
_DIGEST_BITS = 52
_SPIKE = 5000.0  # Huang et al. 2025, SPAM
_MOMENTS = (("exp_avg", "momentum_buffer"), ("exp_avg_sq",))


@dataclass(frozen=True, slots=True)
class _Weights:
    """The optimizer's tensors that can be read, for the time of one call: views, never kept."""

    parameters: list[torch.Tensor]
    flats: list[torch.Tensor]
    plan: sample.Rows


class OptimizerProbe:
    """Watches one optimizer; keeps index plans, counters and one small sample, no tensor of the user."""

    def __init__(self, *, sample_per_tensor: int = 32, full_every: int = 16, replicated: bool = True) -> None:
        """`replicated`: every rank holds the same weights (DDP), so a digest of them can be compared."""
        self._width = sample_per_tensor
        self._full_every = full_every
        self._replicated = replicated
        self._before: torch.Tensor | None = None
        self._voted: tuple[int, torch.Tensor] | None = None  # sample of the last digest, and the weights' version then
        self._second: torch.Tensor | None = None  # sample of the second moments before the step, where they are due
        self._calls = 0
        self._skips = optimizer_facts.SkipCounter()
        self._factors: torch.Tensor | None = None
        self._narrow: tuple[sample.Rows, tuple[torch.dtype, ...], torch.Tensor] | None = None

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember the sampled weights (a small copy on the device), from the inner optimizer's step pre-hook."""
        voted, self._voted = self._voted, None
        with torch.no_grad():
            weights = self._weights(optimizer)
            fresh = voted is not None and voted[0] == _version(weights)
            self._before = voted[1] if voted and fresh else sample.gather(weights.flats, weights.plan.cuts)
            self._second = _moments(optimizer, weights).get(2) if self._seldom(self._calls + 1) else None

    def after_step(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        learning_rate_expected: float | None = None,
        held_elsewhere: Collection[int] = (),
        scaler: Any = None,
        engine: Any = None,
        skipped: bool = False,
        full: bool = True,
    ) -> Pack:
        """Compare with `before_step` and read weights, moments and static facts, from the step post-hook.

        `held_elsewhere`: ids of the parameters that other optimizers of the loop hold. `full` False leaves out what is
        sampled: update, moments, digest. `skipped`: the gate stopped this update. Without `before_step` there are no
        update signals. Also call it after a step that a scaler or engine skipped (no hook fires then). Never
        synchronises, changes no tensor.
        """
        named = list(named_parameters) if named_parameters is not None else None
        before, self._before = self._before, None
        second, self._second = self._second, None
        self._calls += 1
        facts = optimizer_facts.observe(optimizer, named, learning_rate_expected, held_elsewhere)
        facts.update(self._skips.observe(scaler, engine))
        applied = (
            (before is not None or not full) and not skipped and facts.get("optimizer.scaler_skipped_now", 0.0) == 0.0
        )
        facts.pop("optimizer.scaler_skipped_now", None)
        facts["optimizer.step_skipped"] = float(skipped)
        facts["optimizer.step_applied"] = float(applied)
        with torch.no_grad():
            weights = self._weights(optimizer)
            values, layout = self._read(optimizer, weights, (before, second), facts, named, full)
        return Pack("optimizer", values, finish, layout)

    def digest(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Digest the bits of a fixed sample of the weights: 0-d float64 on the device, an integer below 2**52.

        Equal weights give equal digests on every rank; for the step vote. Never synchronises.
        """
        with torch.no_grad():
            weights = self._weights(optimizer)
            sampled = sample.gather(weights.flats, weights.plan.cuts)
            self._voted = (_version(weights), sampled)
            return self._digest(sampled)

    def _weights(self, optimizer: torch.optim.Optimizer) -> _Weights:
        parameters, flats = [], []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                view = flat(parameter) if parameter.requires_grad else None
                if view is not None and view.numel():
                    parameters.append(parameter)
                    flats.append(view)
        plan = sample.rows(_numels(flats), _devices(flats), self._width, _EXTRA_ROWS)
        return _Weights(parameters, flats, plan)

    def _read(
        self,
        optimizer: torch.optim.Optimizer,
        weights: _Weights,
        earlier: tuple[torch.Tensor | None, torch.Tensor | None],
        facts: dict[str, float],
        named: Sequence[tuple[str, torch.nn.Parameter]] | None,
        full: bool,
    ) -> tuple[torch.Tensor, Layout]:
        extremes = norms.read(weights.flats)
        pieces: dict[str, torch.Tensor] = {"weights": extremes.raw}
        before, second = earlier
        seldom = self._seldom(self._calls)
        if full:
            self._read_sample(optimizer, weights, before, pieces, seldom)
            if second is not None:
                pieces.update(_spikes(weights, second))
        if seldom:
            pieces.update(_nonfinite_moments(optimizer, weights.parameters))
        layout = Layout(
            fields=tuple((name, piece.numel()) for name, piece in pieces.items()),
            names=_names(weights.parameters, named),
            pieces=extremes.pieces,
            plan=weights.plan,
            facts=facts,
            dtypes=tuple(view.dtype for view in weights.flats),
            optimizer=id(optimizer),
        )
        return vector(list(pieces.values())), layout

    def _seldom(self, call: int) -> bool:
        """Tell whether what is costlier is due in this call: the first, and every `full_every` after it."""
        return bool(self._full_every) and call % self._full_every == 1 % self._full_every

    def _read_sample(
        self,
        optimizer: torch.optim.Optimizer,
        weights: _Weights,
        before: torch.Tensor | None,
        pieces: dict[str, torch.Tensor],
        seldom: bool,
    ) -> None:
        after = sample.gather(weights.flats, weights.plan.cuts)
        moments = _moments(optimizer, weights)
        if seldom and len(after):
            both = [_wide(_real(x)).view(-1, weights.plan.width) for x in (after, *moments.values())]
            pieces["row_sums"] = torch.stack([x.sum(1) for x in both])
            pieces["row_squares"] = torch.stack([(x * x).sum(1) for x in both])
        if moments:
            squares = _row_squares(_wide(torch.cat(list(moments.values()))), weights.plan.width)
            pieces.update(zip((f"moment{order}" for order in moments), squares.chunk(len(moments)), strict=True))
        if before is not None and before.shape == after.shape:
            pieces.update(_changes(before, after, moments.get(1), weights, self._bf16_rows(weights)))
        if self._replicated and len(after):
            pieces["digest"] = self._digest(after)

    def _bf16_rows(self, weights: _Weights) -> torch.Tensor | None:
        """Mark the rows of bf16 weights, R x 1; None when there are none. Kept: each copy to a device would wait."""
        dtypes = tuple(view.dtype for view in weights.flats)
        if torch.bfloat16 not in dtypes:
            return None
        if self._narrow is None or self._narrow[0] is not weights.plan or self._narrow[1] != dtypes:
            marks = torch.tensor([dtype is torch.bfloat16 for dtype in dtypes])[weights.plan.owner].unsqueeze(1)
            self._narrow = (weights.plan, dtypes, marks.to(weights.flats[0].device))
        return self._narrow[2]

    def _digest(self, sampled: torch.Tensor) -> torch.Tensor:
        """Hash bits and places: sum of bits times odd factors modulo 2**52 (int64 wraps: order does not matter)."""
        if not len(sampled):
            return torch.zeros((), dtype=torch.float64, device=sampled.device)
        bits = sampled.contiguous().view(_bits_of(sampled.dtype)).long()
        if self._factors is None or self._factors.device != bits.device or len(self._factors) != len(bits):
            self._factors = ((sample.hashed(len(bits), salt=1) * 2.0**_DIGEST_BITS).long() * 2 + 1).to(bits.device)
        return ((bits * self._factors).sum() & ((1 << _DIGEST_BITS) - 1)).to(wide_dtype(bits.device))


def _moments(optimizer: torch.optim.Optimizer, weights: _Weights) -> dict[int, torch.Tensor]:
    """Sample both moments at the weights' places. The first one's zeros moved nothing.

    Lacks a moment before the first update, or that the optimizer does not keep.
    """
    out = {}
    for order, names in enumerate(_MOMENTS, start=1):
        views = _fitting([_state(optimizer, parameter, names) for parameter in weights.parameters], weights.flats)
        if any(view is not None for view in views):
            out[order] = sample.gather(views, weights.plan.cuts)
    return out


def _changes(
    before: torch.Tensor,
    after: torch.Tensor,
    moment: torch.Tensor | None,
    weights: _Weights,
    narrow: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """Per row of the sample: squared change, elements changed, elements of float32 that a copy in bf16 shows unchanged.

    And how many bf16 weights an update should have moved, and did not.
    """
    width = weights.plan.width
    changed = before != after
    out = {
        "update": _row_squares(_wide(after) - _wide(before), width),
        "changed": changed.view(-1, width).any(1),
    }
    if any(view.dtype is torch.float32 for view in weights.flats):
        out["image_same"] = (_real(before).bfloat16() == _real(after).bfloat16()).view(-1, width).sum(1)
    if narrow is not None:
        intended = _gradients(weights) if moment is None else moment
        meant = (intended != 0).view(-1, width) & narrow
        out["meant"] = meant.sum()
        out["swallowed"] = (meant & ~changed.view(-1, width)).sum()
    return out


def _gradients(weights: _Weights) -> torch.Tensor:
    """Sample the gradients, for optimizers without a first moment; a missing gradient moves nothing."""
    views = [None if parameter.grad is None else flat(parameter.grad) for parameter in weights.parameters]
    return sample.gather(_fitting(views, weights.flats), weights.plan.cuts)


def _spikes(weights: _Weights, second: torch.Tensor) -> dict[str, torch.Tensor]:
    """Count per row the squared gradients far above their second moment before the step, and what was judged."""
    gradient, moment = _wide(_real(_gradients(weights))), _wide(_real(second))
    if gradient.shape != moment.shape:
        return {}
    judged = moment > 0
    spiked = judged & (gradient * gradient > _SPIKE * moment)
    counts = torch.stack([spiked, judged]).view(2, -1, weights.plan.width).sum(2)
    return {"spiked": counts[0], "spiked_of": counts[1]}


def _fitting(views: Sequence[torch.Tensor | None], flats: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Leave out what has not the size of its weight: the plan's places mean nothing in it."""
    pairs = zip(views, flats, strict=True)
    return [view if view is not None and view.numel() == owner.numel() else None for view, owner in pairs]


def _nonfinite_moments(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    views = [_state(optimizer, parameter, names) for names in _MOMENTS for parameter in parameters]
    held = [view for view in views if view is not None and view.numel()]
    return {"moment_squares": norms.read(held).squares} if held else {}


def _state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, names: Sequence[str]) -> torch.Tensor | None:
    state = optimizer.state.get(parameter)
    tensor = next((state[name] for name in names if isinstance(state.get(name), torch.Tensor)), None) if state else None
    return None if tensor is None else flat(tensor)


def _wide(sampled: torch.Tensor) -> torch.Tensor:
    """Widen before subtracting (n, or n x 2 of complex numbers): two close bf16 weights have few digits between."""
    parts = torch.view_as_real(sampled) if sampled.dtype.is_complex else sampled
    return parts.to(wide_dtype(parts.device))


def _row_squares(parts: torch.Tensor, width: int) -> torch.Tensor:
    """Sum squares over the `width` elements of each row, real and imaginary parts alike."""
    per_row = width * (2 if parts.dim() == 2 else 1)
    return (parts * parts).view(-1, per_row).sum(1)


def _real(sampled: torch.Tensor) -> torch.Tensor:
    """Leave the imaginary parts away: beside complex tensors real ones are sampled as complex numbers too."""
    return sampled.real if sampled.dtype.is_complex else sampled


def _version(weights: _Weights) -> int:
    """Add up the in-place changes that autograd has counted: equal sums mean that nothing was written in between."""
    return sum(parameter._version for parameter in weights.parameters)


def _names(parameters: Sequence[torch.Tensor], named: Sequence[tuple[str, Any]] | None) -> tuple[str, ...]:
    known = {id(parameter): plain_name(name) for name, parameter in named or ()}
    return tuple(known.get(id(parameter), f"parameter_{index}") for index, parameter in enumerate(parameters))


def _numels(flats: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple(view.numel() for view in flats)


def _devices(flats: Sequence[torch.Tensor]) -> tuple[str, ...]:
    return tuple(str(view.device) for view in flats)


def _bits_of(dtype: torch.dtype) -> torch.dtype:
    return {1: torch.int8, 2: torch.int16, 4: torch.int32}.get(dtype.itemsize, torch.int64)
