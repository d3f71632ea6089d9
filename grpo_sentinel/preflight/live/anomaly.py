"""Which operation of the backward pass gives the first NaN (S28), by torch's own anomaly mode, on the worst sample."""

from __future__ import annotations

import re
import warnings

import torch

from grpo_sentinel.preflight.live.loading import Loaded
from grpo_sentinel.preflight.live.rollout import Batch
from grpo_sentinel.preflight.live.scoring import backward

_NAMED = re.compile(r"Function '(\w+)' returned nan values")


def first_nan_operation(
    loaded: Loaded, batch: Batch, weights_B: torch.Tensor, old_BC: torch.Tensor, row: int
) -> str | None:
    """Run one sample's backward again under anomaly detection: the name of the operation, None without a NaN.

    Infinite values alone are not noticed by anomaly mode. Leaves no gradients.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it is slow, and prints the forward's stack
        try:
            with torch.autograd.detect_anomaly(check_nan=True):
                backward(loaded, batch, weights_B, old_BC, None, 0.0, slice(row, row + 1))
        except RuntimeError as error:
            found = _NAMED.search(str(error))
            return found[1] if found else None
        finally:
            loaded.model.zero_grad(set_to_none=True)
    return None


__all__ = ["first_nan_operation"]
