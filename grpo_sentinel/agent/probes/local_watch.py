"""Gradient layer: hooks that see each rank's own gradient before DDP's all-reduce, to name the rank that is wrong."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from grpo_sentinel.agent.probes.pack import Pack


class LocalWatch:
    """Arms and disarms one tensor hook per trainable parameter; nothing is read until `pack`."""

    def arm(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Register the hooks; arming twice changes nothing. The hooks never change a gradient."""
        raise NotImplementedError

    def disarm(self) -> None:
        """Remove the hooks and forget what they saw."""
        raise NotImplementedError

    @property
    def armed(self) -> bool:
        """Tell whether hooks are registered."""
        raise NotImplementedError

    def micro_batch(self) -> None:
        """Mark the border between two micro-batches (call after each backward, or before each forward)."""
        raise NotImplementedError

    def pack(self) -> Pack | None:
        """Hand over what the hooks saw since the last call, at the end of the step; None when nothing fired.

        Gives `gradient.norm_before_reduce`, `gradient.local_nonfinite_tensors` and, in `Harvest.nonfinite`, names with
        where="before_reduce". Never synchronises.
        """
        raise NotImplementedError
