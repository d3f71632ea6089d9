"""Exceptions that leave the trainer, and the deaths that they end in: where one was raised, and what a death then says.

An exception ends its process, so the death of its rank is the consequence, whatever order the layers have. What the
rule about deaths says of other ranks, and of signals, holds only where there are others, and nothing else is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from grpo_sentinel.rules.lost_peers import tells_of_a_lost_peer

EXCEPTION, DEATH, ENDED = "trainer_exception", "rank_dead", "run_ended_by_signal"
OF_OTHERS = "The other ranks fail in their next collective"
OF_SIGNALS = "Exit code -9"
_LAYERS = {
    "data": "data", "reward": "reward", "generate": "policy", "logprobs": "policy", "forward": "policy",
    "backward": "gradient", "optimizer": "optimizer",
}  # fmt: skip
"""Phase -> the layer whose work it is. In others - a vote, a checkpoint, none - it tells nothing: the process ended."""
_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")
_DEVICE = re.compile(r"CUDA error|CUBLAS_STATUS|CUDNN_STATUS|NCCL|device-side assert|HIP error")
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|^<")


def place_of(body: Mapping[str, Any]) -> str:
    """Say where an `exception` event was raised: `reward function accuracy; rewards.py, line 12, in accuracy`.

    The innermost frame of the user's own code counts, or of a library where the kept traceback holds no other.
    """
    frames = _FRAME.findall(str(body.get("traceback", "")))
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])] or frames
    where = str(body.get("where", ""))
    at = f"{own[-1][0].rpartition('/')[2]}, line {own[-1][1]}, in {own[-1][2]}" if own else ""
    return "; ".join(part for part in (where, at) if part)


def layer_of(layer: str, kind: str, body: Mapping[str, Any]) -> str:
    """Give the layer of a finding about an event: for an exception, that of the phase in which it was raised.

    Where memory ran out is chance. A peer that is gone and an error of the device show wherever the next call is.
    """
    if kind != "exception":
        return layer
    name, text = str(body.get("type", "")), str(body.get("message", ""))
    if name in _OUT_OF_MEMORY or "CUDA out of memory" in text:
        return "memory"
    phase = str(body.get("phase", "")).lower()
    if phase != "reward" and (name.startswith("Dist") or _DEVICE.search(text) or tells_of_a_lost_peer(body)):
        return layer
    return _LAYERS.get(phase, layer)


def world_size(states: Iterable[Any]) -> int:
    """Ranks of the job by what those of this node know, at least those that are seen here."""
    known = [getattr(getattr(state, "identity", None), "world_size", 1) for state in states]
    return max([len(known), *known])


def advice_on_death(why: str, remedies: tuple[str, ...], *, alone: bool, raised: bool) -> tuple[str, tuple[str, ...]]:
    """Leave out of a death's words what does not hold: other ranks of an only one, signals after an exception."""
    sentences = why.split(". ")
    why = ". ".join(one for one in sentences if not (alone and one.startswith(OF_OTHERS)))
    return why, tuple(one for one in remedies if not (raised and one.startswith(OF_SIGNALS)))


__all__ = ["DEATH", "ENDED", "EXCEPTION", "advice_on_death", "layer_of", "place_of", "world_size"]
