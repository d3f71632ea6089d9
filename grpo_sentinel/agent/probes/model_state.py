"""Reward layer: the state of a frozen model (reward or reference): modes, dropout, trainable parameters, adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_HEADS = ("score", "classifier", "v_head.summary", "reward_head", "value_head", "regression_head", "out_proj")


def observe_model(
    name: str, module: torch.nn.Module, *, scores: Any = None, adapters: bool | None = None
) -> dict[str, float]:
    """Read the state of one reward or reference model on the host (S9, S10, S11, S14, S31).

    `scores` is what its last pass returned (a tensor, or an output with `.logits`), to see a kept autograd graph.
    `adapters` says whether adapters are meant to be active; None takes those that there are for wanted, as in a
    reward model. Costs a walk over the modules (about
    1 microsecond each); the head's bias is one small copy, so call this at attach and every few hundred steps.
    """
    modules, parameters = list(module.modules()), list(module.parameters())
    floating = {parameter.dtype for parameter in parameters if parameter.is_floating_point()}
    out = {
        f"reward.model_training_modules[{name}]": float(sum(part.training for part in modules)),
        f"reward.model_active_dropouts[{name}]": float(sum(_drops(part) for part in modules)),
        f"reward.model_trainable_parameters[{name}]": float(sum(p.requires_grad for p in parameters)),
        f"reward.model_dtypes[{name}]": float(len(floating)),
        f"reward.model_devices[{name}]": float(len({parameter.device for parameter in parameters})),
    }
    if floating:
        out[f"reward.model_bits[{name}]"] = float(min(8 * dtype.itemsize for dtype in floating))
    bias = head_bias(module)
    if bias is not None:
        out[f"reward.model_head_bias[{name}]"] = float(bias.detach().float().abs().max())
    tensor = getattr(scores, "logits", scores)
    if isinstance(tensor, torch.Tensor):
        out[f"reward.model_autograd[{name}]"] = float(tensor.grad_fn is not None)
    layers = _adapters(modules)
    if layers or adapters is not None:
        wanted = adapters is not False
        out[f"reward.model_adapter_mismatch[{name}]"] = float(
            sum(active != wanted for active in layers) or (wanted and not layers)
        )
    return out


def describe_model(module: torch.nn.Module) -> dict[str, str]:
    """Say in words what `observe_model` counts: dtypes and devices of the parameters."""
    parameters = list(module.parameters())
    return {
        "dtype": ", ".join(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})),
        "device": ", ".join(sorted({str(parameter.device) for parameter in parameters})),
    }


def adapter_layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """List the layers that carry adapters (peft's tuner layers, known by their attributes)."""
    return [part for part in module.modules() if _carries_adapter(part)]


def active_adapters(layers: Sequence[torch.nn.Module]) -> set[str]:
    """Name the adapters that are on in at least one of `layers`."""
    return {name for layer in layers for name in _active(layer)}


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
    """List whether each adapter layer is active."""
    return [bool(_active(part)) for part in modules if _carries_adapter(part)]


def _carries_adapter(part: torch.nn.Module) -> bool:
    return hasattr(part, "active_adapters") and hasattr(part, "disable_adapters") and hasattr(part, "base_layer")


def _active(layer: Any) -> list[str]:
    return [] if layer.disable_adapters else list(layer.active_adapters)
