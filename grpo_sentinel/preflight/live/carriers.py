"""Which sample and which token carry the gradient (S26).

A sample's share is that of its own backward: |g_b|^2 / sum of |g_b|^2. A token's is that of the gradient that arrives
at the input of the output layer at its place: |dL/dh_t|^2, exact for the output layer, an indication below it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from grpo_sentinel.preflight.live.loading import Loaded
from grpo_sentinel.preflight.live.rollout import Batch
from grpo_sentinel.preflight.live.scoring import backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Carriers:
    """Squared gradient norms: of each sample that was tried, and of each token; what they were."""

    norms_B: tuple[float, ...]
    tokens_BC: torch.Tensor  # |dL/dh|^2 at the place that predicts the token, CPU, float64
    largest_hidden: float  # max |activation| seen at any layer's output

    def top_sample(self) -> tuple[int, float]:
        """Index and share of the strongest sample; a norm that is not finite takes all."""
        for index, one in enumerate(self.norms_B):
            if not one < float("inf"):
                return index, 1.0
        total = sum(one * one for one in self.norms_B)
        index = max(range(len(self.norms_B)), key=self.norms_B.__getitem__)
        return index, self.norms_B[index] ** 2 / total if total else 0.0

    def top_token(self) -> tuple[int, int, float]:
        """Sample, place and share of the strongest token."""
        flat = self.tokens_BC.flatten()
        bad = torch.nonzero(~torch.isfinite(flat)).flatten()
        place = int(bad[0]) if bad.numel() else int(flat.argmax())
        total = float(flat.sum())
        share = 1.0 if bad.numel() else float(flat[place]) / total if total else 0.0
        return place // self.tokens_BC.shape[1], place % self.tokens_BC.shape[1], share


def find_carriers(
    loaded: Loaded, batch: Batch, weights_B: torch.Tensor, old_BC: torch.Tensor, deadline: float
) -> Carriers:
    """One backward a sample, until `deadline` (at least two); leaves no gradients."""
    seen: list[torch.Tensor] = []
    largest = [0.0]

    def at_head(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        if given[0].requires_grad:
            given[0].register_hook(lambda grad: seen.append(grad.detach().double().square().sum(-1).cpu()))

    def after_layer(module: torch.nn.Module, given: object, out: object) -> None:
        hidden = out[0] if isinstance(out, tuple) else out
        if isinstance(hidden, torch.Tensor) and hidden.is_floating_point() and hidden.numel():
            largest[0] = max(largest[0], float(hidden.detach().abs().max()))

    head = loaded.model.get_output_embeddings()
    hooks = [head.register_forward_pre_hook(at_head)] if head is not None else []
    hooks += [part.register_forward_hook(after_layer) for part in _layers(loaded.model)]
    norms: list[float] = []
    tokens = torch.zeros(len(batch.samples), batch.width, dtype=torch.float64)
    try:
        for row in range(len(batch.samples)):
            if row > 1 and time.monotonic() > deadline:
                break
            seen.clear()
            loaded.model.zero_grad(set_to_none=True)
            backward(loaded, batch, weights_B, old_BC, None, 0.0, slice(row, row + 1))
            parts = [one.grad.double().norm() for one in loaded.model.parameters() if one.grad is not None]
            norms.append(float(torch.stack(parts).norm()) if parts else 0.0)
            if seen:
                tokens[row] = seen[0][0, -batch.width - 1 : -1]
    finally:
        for hook in hooks:
            hook.remove()
        loaded.model.zero_grad(set_to_none=True)
    return Carriers(norms_B=tuple(norms), tokens_BC=tokens, largest_hidden=largest[0])


def _layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The members of every ModuleList: the blocks of a transformer."""
    return [part for one in model.modules() if isinstance(one, torch.nn.ModuleList) for part in one]


__all__ = ["Carriers", "find_carriers"]
