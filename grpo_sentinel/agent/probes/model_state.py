"""Reward layer: the state of a frozen model (reward or reference): modes, dropout, trainable parameters, adapters."""

from __future__ import annotations

from typing import Any

import torch


def observe_model(name: str, module: torch.nn.Module, *, scores: Any = None, adapters: bool | None = None) -> dict[str, float]:
    """Read the state of one reward or reference model on the host (S9, S10, S11, S14, S31).

    `scores` is what its last pass returned (a tensor, or an output with `.logits`), to see a kept autograd graph.
    `adapters` says whether adapters are meant to be active; None leaves S11 out. The head's bias is read (one small
    copy) only when it lives on the CPU, or when it changed since: call this at attach and every few hundred steps.
    """
    raise NotImplementedError
