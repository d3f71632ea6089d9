"""Anomaly trace of one step: which operation made the first NaN, in the forward or the backward, and where in the code.

Every operation's result is looked at while its inputs are known to be free of NaN. Autograd's own anomaly mode is on
beside it (`check_nan=False`: it would raise, and end the run), so that an operation of the backward can be traced to
the line of the forward that it belongs to. Slow (one look per operation), for one step only.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_UNSET = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "resize_", "set_", "detach", "view")
_AGENT = os.path.join("grpo_sentinel", "agent", "")
_INTEGRATIONS = os.path.join("grpo_sentinel", "integrations", "")
_NOT_THE_USERS = (_AGENT, _INTEGRATIONS, "_python_dispatch", os.path.join("torch", "_"))
_MOST_FRAMES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """The first operation whose result holds NaN though no input did."""

    operation: str  # "aten.log.default"
    phase: str  # "forward" | "backward"
    node: str  # autograd's name of the backward function, "" in the forward
    inputs: tuple[str, ...]  # "float32[4, 8] min -inf max 3.2"
    nan_elements: int
    operations_before: int
    stack: tuple[str, ...]  # innermost last; in the backward that of the forward which it belongs to

    def told(self) -> str:
        """Say it in one line."""
        where = f" ({self.node})" if self.node else ""
        at = f" at {self.stack[-1].strip().splitlines()[0]}" if self.stack else ""
        return f"{self.operation}{where} in the {self.phase} made the first NaN{at}; inputs: {', '.join(self.inputs)}"

    def body(self) -> dict[str, Any]:
        """Give it as plain data."""
        return {**asdict(self), "inputs": list(self.inputs), "stack": list(self.stack)}


class AnomalyTrace(TorchDispatchMode):  # type: ignore[misc]
    """Watches operations between `start` and `stop` of this thread and of the backward that it starts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Anomaly | None = None
        self.operations = 0
        self.running = False
        self._anomaly_mode: Any = None

    def start(self) -> None:
        """Begin to watch."""
        self._anomaly_mode = torch.autograd.set_detect_anomaly(True, check_nan=False)
        self.__enter__()
        self.running = True

    def stop(self) -> None:
        """Watch no longer; what was found stays. Idempotent."""
        if not self.running:
            return
        self.running = False
        self.__exit__(None, None, None)
        self._anomaly_mode.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.found is not None or func.__name__.partition(".")[0] in _UNSET:
            return func(*args, **kwargs)
        inputs = list(_tensors((args, kwargs)))
        in_place = func._schema.is_mutable  # its inputs must be looked at before it overwrites them
        before = any(_nans(tensor) for tensor in inputs) if in_place else False
        result = func(*args, **kwargs)
        self.operations += 1
        bad = sum(_nans(tensor) for tensor in _tensors(result))
        if bad and not (before if in_place else any(_nans(tensor) for tensor in inputs)) and not _is_ours():
            self._note(func, inputs, bad)
        return result

    def _note(self, func: Any, inputs: list[torch.Tensor], bad: int) -> None:
        node: Any = torch._C._current_autograd_node()
        self.found = Anomaly(
            operation=str(func),
            phase="forward" if node is None else "backward",
            node="" if node is None else str(node.name()),
            inputs=tuple(_words(tensor) for tensor in inputs[:6]),
            nan_elements=bad,
            operations_before=self.operations - 1,
            stack=_stack(node),
        )


def _is_ours() -> bool:
    """Tell whether a probe of the agent made this operation."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if _AGENT in name and not name.endswith("trace.py") and not name.endswith("rerun.py"):
            return True
        frame = frame.f_back
    return False


def first_nan_input(named: dict[str, Any]) -> str:
    """Name the first tensor that already holds NaN before anything is computed; "" when none does."""
    return next((name for name, value in named.items() for one in _tensors(value) if _nans(one)), "")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _nans(tensor: torch.Tensor) -> int:
    tensor = getattr(tensor, "_local_tensor", tensor)  # DTensor: this rank's part, without a collective
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
        return 0
    if not tensor.dtype.is_floating_point or not tensor.numel() or tensor.layout is not torch.strided:
        return 0
    return int(torch.isnan(tensor.detach()).sum())


def _words(tensor: torch.Tensor) -> str:
    shape = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    here = getattr(tensor, "_local_tensor", tensor)
    if here.is_meta or not here.numel() or here.dtype.is_complex or here.layout is not torch.strided:
        return shape
    low, high = (float(x) for x in torch.aminmax(here.detach().float()))
    return f"{shape} min {low:g} max {high:g}"


def _stack(node: Any) -> tuple[str, ...]:
    """Frames of the user's code: of this moment, or of the forward that made a node of the backward."""
    if node is not None and node.metadata.get("traceback_"):
        frames = [str(frame).rstrip() for frame in node.metadata["traceback_"]]
    else:
        frames = [frame.rstrip() for frame in traceback.format_stack()]
    theirs = [frame for frame in frames if not any(part in frame.partition("\n")[0] for part in _NOT_THE_USERS)]
    return tuple(theirs[-_MOST_FRAMES:])
