"""Optimizer layer: what the host knows without looking into a tensor: rates, parameters held, state shapes, skips."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

_SHAPED = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")
_LOW = (torch.bfloat16, torch.float16)


def observe(
    optimizer: torch.optim.Optimizer,
    named_parameters: Sequence[tuple[str, torch.nn.Parameter]] | None,
    learning_rate_expected: float | None,
    held_elsewhere: Collection[int] = (),
) -> dict[str, float]:
    """Read the optimizer's groups and states: no tensor's contents, a fraction of a microsecond per parameter."""
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    trainable = [parameter for parameter in held if parameter.requires_grad]
    out = {
        "optimizer.state_shape_mismatch": float(sum(_mismatches(optimizer.state.get(p), p) for p in held)),
        "optimizer.low_precision_weights": float(
            any(p.dtype in _LOW for p in trainable) and not _has_master(optimizer)
        ),
    }
    rate = _rate(optimizer)
    if rate is not None:
        out["optimizer.learning_rate"] = rate
    out.update(_hyperparameters(optimizer))
    if learning_rate_expected is not None:
        out["optimizer.learning_rate_expected"] = float(learning_rate_expected)
    if named_parameters is not None:
        ours = {id(parameter) for parameter in held}
        model = {id(parameter): parameter for _, parameter in named_parameters}
        out["optimizer.unheld_parameters"] = float(
            sum(p.requires_grad for key, p in model.items() if key not in ours and key not in held_elsewhere)
        )
        out["optimizer.stale_parameters"] = float(len(ours - model.keys()))
    return out


class SkipCounter:
    """Counts the updates that a scaler or an engine skipped: they own the counts or only leave traces."""

    def __init__(self) -> None:
        self._skips = 0.0
        self._scale: float | None = None

    def observe(self, scaler: Any, engine: Any) -> dict[str, float]:
        """Read a GradScaler (its scale fell: it skipped) or a DeepSpeed engine (it counts itself)."""
        out: dict[str, float] = {}
        before = self._skips
        if engine is not None and hasattr(engine, "skipped_steps"):
            self._skips = float(engine.skipped_steps)
            scale = getattr(getattr(engine, "optimizer", None), "loss_scale", None)
            if isinstance(scale, (int, float)):
                out["optimizer.loss_scale"] = float(scale)
        elif scaler is not None:
            scale = _scale_of(scaler)
            if scale is None:
                return {}
            self._skips += self._scale is not None and scale < self._scale
            self._scale = scale
            out["optimizer.loss_scale"] = scale
        else:
            return {}
        out["optimizer.scaler_skips"] = self._skips
        out["optimizer.scaler_skipped_now"] = float(self._skips > before)
        return out


def _scale_of(scaler: Any) -> float | None:
    """Read a GradScaler's scale; on CUDA `get_scale` synchronises, as the scaler's own step has done already."""
    if not getattr(scaler, "is_enabled", lambda: True)():
        return None
    return float(scaler.get_scale()) if hasattr(scaler, "get_scale") else None


def _rate(optimizer: torch.optim.Optimizer) -> float | None:
    """Give the first group's learning rate; None when it lives on a device (capturable): reading would wait."""
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" else None
    return None if rate is None else float(rate)


def _hyperparameters(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Read the first group's averaging and decay, where they are plain numbers."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    betas = group.get("betas")
    known = {"weight_decay": group.get("weight_decay")}
    if isinstance(betas, tuple | list) and len(betas) >= 2:
        known |= {"beta1": betas[0], "beta2": betas[1]}
    return {f"optimizer.{name}": float(value) for name, value in known.items() if isinstance(value, int | float)}


def _mismatches(state: Any, parameter: torch.Tensor) -> int:
    if not state:
        return 0
    tensors = (state.get(name) for name in _SHAPED)
    return sum(isinstance(tensor, torch.Tensor) and tensor.shape != parameter.shape for tensor in tensors)


def _has_master(optimizer: Any) -> bool:
    """Look for the float32 copies that mixed-precision optimizers keep (DeepSpeed, Apex, TransformerEngine)."""
    return any(
        getattr(optimizer, name, None)
        for name in ("fp32_groups_flat", "single_partition_of_fp32_groups", "master_weights")
    )
