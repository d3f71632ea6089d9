"""The optimizers of a loop and a probe for each: most loops have one, some step two (Muon beside AdamW).

Only weak references are kept. What the probes say is merged at harvest.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from grpo_sentinel.agent.optimizers import innermost
from grpo_sentinel.agent.probes.optimizer import OptimizerProbe
from grpo_sentinel.agent.probes.pack import Pack
from grpo_sentinel.agent.schedule import expected_rate, moves

_DIGESTS = 2.0**52


class UpdateProbes:
    """Knows every optimizer that it was told of or that has stepped."""

    def __init__(self) -> None:
        self._replicated = False
        self._probes: weakref.WeakKeyDictionary[torch.optim.Optimizer, OptimizerProbe] = weakref.WeakKeyDictionary()
        self._newest: weakref.ref[torch.optim.Optimizer] | None = None

    @property
    def newest(self) -> torch.optim.Optimizer | None:
        """The innermost optimizer that was watched or that stepped last."""
        return None if self._newest is None else self._newest()

    def watch(self, optimizers: Sequence[Any], *, replicated: bool) -> None:
        """Take optimizers, wrapped or not; `replicated`: all ranks hold the same weights, their digests compare."""
        known = [*self._probes, *map(innermost, optimizers)]
        self._replicated = replicated
        self._probes.clear()
        for optimizer in known:
            self._probe(optimizer)

    def digest(self) -> torch.Tensor | None:
        """Digest the weights of all optimizers: 0-d float64 on the device, an integer below 2**52; None without any."""
        digests = [probe.digest(optimizer) for optimizer, probe in self._probes.items()]
        if len(digests) < 2:
            return digests[0] if digests else None
        return torch.stack([one.to(digests[0].device) for one in digests]).sum().remainder(_DIGESTS)

    def before(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember what this one is about to change."""
        self._probe(optimizer).before_step(optimizer)

    def after(
        self,
        optimizer: torch.optim.Optimizer | None,
        named_parameters: Sequence[tuple[str, torch.nn.Parameter]],
        details: Mapping[str, Any],
        *,
        skipped: bool,
        full: bool,
    ) -> Pack | None:
        """See what it did. None: no optimizer was called in this step; look at the newest known, if any."""
        optimizer = self.newest if optimizer is None else optimizer
        if optimizer is None:
            return None
        probe, given = self._probe(optimizer), dict(details)
        scheduler = given.pop("scheduler", None)
        if scheduler is not None and moves(scheduler, optimizer):
            given.setdefault("learning_rate_expected", expected_rate(scheduler))
        others = [other for other in self._probes if other is not optimizer]
        return probe.after_step(
            optimizer,
            named_parameters=named_parameters or None,
            held_elsewhere={id(p) for other in others for group in other.param_groups for p in group["params"]},
            skipped=skipped,
            full=full,
            **given,
        )

    def _probe(self, optimizer: torch.optim.Optimizer) -> OptimizerProbe:
        self._newest = weakref.ref(optimizer)
        probe = self._probes.get(optimizer)
        if probe is None:
            probe = self._probes[optimizer] = OptimizerProbe(replicated=self._replicated)
        return probe
