"""Reward layer: the state of a frozen model (reward or reference): modes, dropout, trainable parameters, adapters."""

from __future__ import annotations

from typing import Any

import torch

_HEADS = ("score", "classifier", "v_head.summary", "reward_head", "value_head", "regression_head", "out_proj")


def observe_model(
    name: str, module: torch.nn.Module, *, scores: Any = None, adapters: bool | None = None
) -> dict[str, float]:
    """Read the state of one reward or reference model on the host (S9, S10, S11, S14, S31).

    `scores` is what its last pass returned (a tensor, or an output with `.logits`), to see a kept autograd graph.
    `adapters` says whether adapters are meant to be active; None leaves S11 out. Costs a walk over the modules (about
    1 microsecond each); the head's bias is one small copy, so call this at attach and every few hundred steps.
    """
    modules = list(module.modules())
    out = {
        f"reward.model_training_modules[{name}]": float(sum(part.training for part in modules)),
        f"reward.model_active_dropouts[{name}]": float(sum(_drops(part) for part in modules)),
        f"reward.model_trainable_parameters[{name}]": float(sum(p.requires_grad for p in module.parameters())),
    }
    bias = head_bias(module)
    if bias is not None:
        out[f"reward.model_head_bias[{name}]"] = float(bias.detach().float().abs().max())
    tensor = getattr(scores, "logits", scores)
    if isinstance(tensor, torch.Tensor):
        out[f"reward.model_autograd[{name}]"] = float(tensor.grad_fn is not None)
    if adapters is not None:
        wrong = sum(active != adapters for active in _adapters(modules))
        out[f"reward.model_adapter_mismatch[{name}]"] = float(wrong or (adapters and not _adapters(modules)))
    return out


def autograd_kept(scores: Any) -> bool:
    """Tell whether the result of a reward or reference pass still carries its graph. Reads no element."""
    tensor = getattr(scores, "logits", scores)
    return isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None


def head_bias(module: torch.nn.Module) -> torch.Tensor | None:
    """Find the bias of the reward head: of the last linear module named like a head; None when it has none."""
    for name, part in reversed(list(module.named_modules())):
        bias = getattr(part, "bias", None)
        if name.endswith(_HEADS) and isinstance(bias, torch.Tensor) and bias.numel() and not bias.is_meta:
            return bias
    return None


def _drops(part: torch.nn.Module) -> bool:
    """Dropout as a module; a dropout probability used functionally (attention) is active with its owner's mode."""
    if isinstance(part, torch.nn.modules.dropout._DropoutNd):
        return bool(part.training and part.p > 0)
    functional = getattr(part, "attention_dropout", None)
    return bool(part.training and isinstance(functional, float) and functional > 0)


def _adapters(modules: list[torch.nn.Module]) -> list[bool]:
    """List whether each adapter layer is active (peft's tuner layers, known by their attributes)."""
    found = []
    for part in modules:
        if hasattr(part, "active_adapters") and hasattr(part, "disable_adapters") and hasattr(part, "base_layer"):
            found.append(bool(part.active_adapters) and not part.disable_adapters)
    return found
