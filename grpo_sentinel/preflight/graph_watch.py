"""Does work that needs no gradient keep an autograd graph (S31)? torch's own hook on saved tensors tells exactly.

Where torch was never imported there is nothing to see, and it is not imported here.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class GraphSeen:
    """Tensors that were saved for a backward, and their bytes, in the thread that was watched."""

    tensors: int = 0
    bytes: int = 0


@contextlib.contextmanager
def watch_graph(seen: GraphSeen) -> Iterator[None]:
    """Count into `seen` what autograd saves while the block runs, in this thread; changes no number."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return

    def pack(tensor: Any) -> Any:
        seen.tensors += 1
        seen.bytes += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


def needs_gradient(value: Any) -> bool:
    """Whether a tensor, or one in a list of them, is part of a graph; other values are not."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return any(getattr(one, "requires_grad", False) is True for one in values)


__all__ = ["GraphSeen", "needs_gradient", "watch_graph"]
