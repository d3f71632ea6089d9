"""States of the random generators as tensors, and back: Python, numpy where loaded, torch on CPU and CUDA.

python  I64 (version, 625 words, has_gauss), python_gauss F64      torch_cpu U8
numpy   I64 (624 words, position, has_gauss), numpy_gauss F64      cuda_<index> U8
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def states(*, torch_only: bool = False) -> dict[str, torch.Tensor]:
    """Read the state of every generator that exists. Does not synchronise: a CUDA generator's state is on the host."""
    found = {"torch_cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            found[f"cuda_{index}"] = torch.cuda.get_rng_state(index)
    if torch_only:
        return found
    version, words, gauss = random.getstate()
    found["python"] = torch.tensor([version, *words, gauss is not None], dtype=torch.int64)
    found["python_gauss"] = torch.tensor([gauss or 0.0], dtype=torch.float64)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)
        if state["bit_generator"] == "MT19937":
            words = [*map(int, state["state"]["key"]), int(state["state"]["pos"]), int(state["has_gauss"])]
            found["numpy"] = torch.tensor(words, dtype=torch.int64)
            found["numpy_gauss"] = torch.tensor([float(state["gauss"])], dtype=torch.float64)
    return found


def restore(saved: Mapping[str, torch.Tensor]) -> list[str]:
    """Set every generator that is there and was saved; gives their names."""
    done = []
    if "torch_cpu" in saved:
        torch.set_rng_state(saved["torch_cpu"])
        done.append("torch_cpu")
    for name in sorted(saved):
        index = name.removeprefix("cuda_")
        if index != name and torch.cuda.is_available() and int(index) < torch.cuda.device_count():
            torch.cuda.set_rng_state(saved[name], int(index))
            done.append(name)
    if "python" in saved:
        version, *words, has_gauss = saved["python"].tolist()
        random.setstate((version, tuple(words), float(saved["python_gauss"][0]) if has_gauss else None))
        done.append("python")
    numpy: Any = sys.modules.get("numpy")
    if "numpy" in saved and numpy is not None:
        *key, position, has_gauss = saved["numpy"].tolist()
        gauss = float(saved["numpy_gauss"][0])
        numpy.random.set_state(("MT19937", numpy.array(key, dtype=numpy.uint32), position, has_gauss, gauss))
        done.append("numpy")
    return done


def has_dropout(model: torch.nn.Module | None) -> bool:
    """Tell whether a forward of this model draws random numbers, as far as its modules and configuration say."""
    if model is None:
        return False
    for module in model.modules():
        chance = getattr(module, "p", None)
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and chance:
            return True
        if isinstance(getattr(module, "attention_dropout", None), float) and module.attention_dropout > 0:
            return True
    return False
