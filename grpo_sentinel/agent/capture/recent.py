"""The micro-batches of the present step and the one before, by weak reference: nothing of the user's is kept alive.

A trainer holds its batch until the step is over, so at the vote, or when an exception leaves the step, it is still
there. Scalars of the loss are kept as they are.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from grpo_sentinel.agent.capture import rng

_MOST_MICRO_BATCHES = 64
_SMALL = 4096  # bytes: a loss that is a view into something large would keep that alive
_POLICY_NAMES = ("logp_BT", "entropy_BT", "old_logp_BT", "ref_logp_BT", "sampling_logp_BT", "mask_BT", "advantages")

Held = list[tuple[str, "weakref.ref[torch.Tensor]"]]


class Recent:
    """Notes of micro-batches: `(step, kind, ...)` in the order in which they came."""

    def __init__(self) -> None:
        self.with_rng = False  # note the random state before each step: needed where a forward draws numbers
        self.armed = False  # keep this step's policy tensors until its vote: a capture of it is due
        self.before: dict[str, torch.Tensor] = {}
        self._batches: deque[tuple[int, Held]] = deque(maxlen=_MOST_MICRO_BATCHES)
        self._losses: deque[tuple[int, torch.Tensor, float]] = deque(maxlen=_MOST_MICRO_BATCHES)
        self._kept: deque[tuple[int, dict[str, torch.Tensor]]] = deque(maxlen=_MOST_MICRO_BATCHES)
        self._numbers: deque[tuple[int, int, str, float]] = deque(maxlen=4 * _MOST_MICRO_BATCHES)
        self._step = 0

    def batch(self, step: int, tensors: Mapping[str, Any]) -> None:
        """Note a micro-batch that is about to be trained on."""
        if step != self._step:
            self._step = step
            wanted = self.with_rng or self.armed
            self.before = rng.states(torch_only=not self.armed) if wanted else {}
        held: Held = []
        for name, value in tensors.items():
            if isinstance(value, torch.Tensor):
                held.append((name, weakref.ref(value)))
            elif isinstance(value, (int, float)):
                self._numbers.append((step, sum(at == step for at, _ in self._batches), name, value))
        self._batches.append((step, held))

    def policy(self, step: int, tensors: Mapping[str, Any]) -> None:
        """Note a micro-batch's loss; its log-probs only when a capture is due."""
        loss = tensors.get("loss")
        if isinstance(loss, torch.Tensor) and loss.untyped_storage().nbytes() <= _SMALL:
            self._losses.append((step, loss.detach(), float(tensors.get("loss_scale") or 1.0)))
        if self.armed:
            kept = {n: tensors[n].detach() for n in _POLICY_NAMES if isinstance(tensors.get(n), torch.Tensor)}
            self._kept.append((step, kept))

    def batches(self, step: int) -> list[dict[str, torch.Tensor]]:
        """Give the micro-batches of a step, those tensors that are still alive."""
        found = []
        for at, held in self._batches:
            if at == step:
                alive = {name: tensor for name, ref in held if (tensor := ref()) is not None}
                found.append(alive)
        return found

    def let_go(self, step: int) -> int:
        """Count the tensors of a step's micro-batches that the loop has let go of."""
        return sum(ref() is None for at, held in self._batches if at == step for _, ref in held)

    def kept(self, step: int) -> list[dict[str, torch.Tensor]]:
        """Give the policy tensors that were kept of a step's micro-batches."""
        return [kept for at, kept in self._kept if at == step]

    def numbers(self, step: int) -> dict[str, dict[str, float]]:
        """Give the plain numbers among a step's inputs, by micro-batch."""
        found: dict[str, dict[str, float]] = {}
        for at, micro, name, value in self._numbers:
            if at == step:
                found.setdefault(str(micro), {})[name] = value
        return found

    def losses(self, step: int) -> list[tuple[float, float]]:
        """Give (loss, loss_scale) of every micro-batch of a step. Waits for the device."""
        return [(float(loss), scale) for at, loss, scale in self._losses if at == step]

    def forget(self) -> None:
        """Let go of what was kept for a capture."""
        self._kept.clear()
        self.before = {}
        self.armed = False
