"""When an exception leaves the trainer: are the weights finite? Written after the last step, no record tells of them.

A device that does not answer (its context is lost, a collective hangs on it) is not asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch

from grpo_sentinel.agent.probes import norms
from grpo_sentinel.agent.probes.flat import flat, plain_name

_PATIENCE_SECONDS = 2.0  # for the work that stands before the look


def nonfinite_weights(parameters: Iterable[tuple[str, Any]]) -> list[str]:
    """Name the parameters that hold NaN or infinity on this rank. Synchronises; [] where the device does not answer."""
    by_device: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
    with torch.no_grad():
        for name, parameter in parameters:
            if (here := flat(parameter)) is not None:
                by_device.setdefault(here.device, []).append((plain_name(name), here))
        found: list[str] = []
        for device, named in by_device.items():
            if _answers(device):
                extremes = norms.read([one for _, one in named])
                raw = extremes.raw.to("cpu", torch.float64)
                found += [named[place][0] for place in norms.finish(raw, extremes.pieces).bad()]
    return found


def _answers(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    deadline = time.monotonic() + _PATIENCE_SECONDS
    try:
        while not torch.cuda.current_stream(device).query():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
    except RuntimeError:  # the error that ends the run is the device's own
        return False
    return True
