"""Do the tensors of a batch fit together? Shapes, devices and dtypes, all known on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

_IDS = ("prompt_ids", "completion_ids", "input_ids")
_MASKS = {"prompt_mask": "prompt_ids", "completion_mask": "completion_ids", "attention_mask": "input_ids"}
_PER_ROW = ("advantages", "rewards", "logp", "importance", "labels", "mask")
"""Names (or parts of them) of tensors that must have one entry per row; others (pixel values, counts) may have any."""
_REAL = ("advantages", "rewards", "logp", "importance")


@dataclass(frozen=True, slots=True)
class Layout:
    """What fits, by name, and the names of what does not."""

    rows: int
    fitting: dict[str, torch.Tensor]  # 2-D ids and masks that can be computed with
    wrong_shape: tuple[str, ...]
    wrong_device: tuple[str, ...]
    wrong_dtype: tuple[str, ...]

    def mask_of(self, section: str) -> torch.Tensor | None:
        """Give the boolean mask of `prompt`, `completion` or `input` ids."""
        mask = self.fitting.get("attention_mask" if section == "input" else f"{section}_mask")
        return None if mask is None else mask != 0

    def completion(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Give ids and boolean mask of the completions, inside the whole sequences when they do not come apart."""
        ids = self.fitting.get("completion_ids")
        mask = self.mask_of("completion")
        if ids is None and mask is not None:
            ids = self.fitting.get("input_ids")
        return ids, mask

    def facts(self) -> dict[str, float]:
        """Count what does not fit."""
        return {f"data.{what}_mismatch": float(len(names)) for what, names in self._wrong().items()}

    def subjects(self) -> dict[str, str]:
        """Name what does not fit."""
        return {f"data.{what}_mismatch": ", ".join(names) for what, names in self._wrong().items() if names}

    def _wrong(self) -> dict[str, tuple[str, ...]]:
        return {"shape": self.wrong_shape, "device": self.wrong_device, "dtype": self.wrong_dtype}


def check_layout(tensors: Mapping[str, torch.Tensor], model_device: torch.device | None) -> Layout:
    """Compare the tensors of one batch with each other and with the model's device. Reads no element."""
    first = next((tensors[name] for name in (*_IDS, *_MASKS) if name in tensors and tensors[name].dim() == 2), None)
    rows = 0 if first is None else first.shape[0]
    device = model_device if model_device is not None else (None if first is None else first.device)
    widths = _widths(tensors)
    wrong_shape = tuple(name for name, tensor in tensors.items() if not _shape_fits(name, tensor, rows, widths))
    fitting = {
        name: tensor
        for name, tensor in tensors.items()
        if (name in _IDS or name in _MASKS)
        and name not in wrong_shape
        and first is not None
        and tensor.device == first.device
    }
    return Layout(
        rows=rows,
        fitting={name: tensor for name, tensor in fitting.items() if not tensor.is_meta and _dense(tensor)},
        wrong_shape=wrong_shape,
        wrong_device=tuple(n for n, t in tensors.items() if device is not None and not _same_device(t.device, device)),
        wrong_dtype=tuple(
            name for name, tensor in tensors.items() if not _dtype_fits(name, tensor.dtype) or not _dense(tensor)
        ),
    )


def _widths(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    return {name: tensors[name].shape[1] for name in (*_IDS, *_MASKS) if name in tensors and tensors[name].dim() == 2}


def _shape_fits(name: str, tensor: torch.Tensor, rows: int, widths: Mapping[str, int]) -> bool:
    if name in _IDS:
        return bool(tensor.dim() == 2 and tensor.shape[0] == rows)
    if name in _MASKS:
        owner = _MASKS[name] if _MASKS[name] in widths else "input_ids"
        return tuple(tensor.shape) == (rows, widths.get(owner, tensor.shape[-1] if tensor.dim() else 0))
    if not any(part in name for part in _PER_ROW) or tensor.dim() == 0 or not rows:
        return True
    if tensor.shape[0] != rows:
        return False
    return tensor.dim() == 1 or tensor.shape[1] in _allowed_widths(widths)


def _allowed_widths(widths: Mapping[str, int]) -> set[int]:
    """Per row, per completion token, or per token of the whole sequence; one less where the first has no log-prob."""
    prompt, completion = widths.get("prompt_ids", 0), widths.get("completion_ids", widths.get("completion_mask", 0))
    whole = widths.get("input_ids", prompt + completion)
    return {1, completion, whole, whole - 1}


def _dtype_fits(name: str, dtype: torch.dtype) -> bool:
    if name in _IDS or name == "labels":
        return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
    if any(part in name for part in _REAL):
        return bool(dtype.is_floating_point)
    return not dtype.is_complex


def _dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided


def _same_device(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.index is None or other.index is None or one.index == other.index)
