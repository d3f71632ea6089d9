"""What the probe tests share: harvesting, a counter of synchronising calls, and a witness of untouched tensors."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_sentinel.agent.probes.pack import Harvest
from grpo_sentinel.agent.readback import Readback

SYNCHRONISING = {
    "_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select", "unique", "_unique2",
    "unique_dim", "bincount", "allclose", "repeat_interleave",
}


def harvest(*packs) -> Harvest:
    readback = Readback()
    for pack in packs:
        readback.add(pack)
    return readback.harvest()


class SyncCounter(TorchDispatchMode):
    """Counts the operations that would make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        name = func.overloadpacket.__name__
        if name in SYNCHRONISING:
            self.calls.append(name)
        if name in ("index", "index_put_") and any(
            isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in (args[1] or ()) if i is not None
        ):
            self.calls.append(f"{name} by mask")
        out = func(*args, **(kwargs or {}))
        if name in ("_to_copy", "copy_") and isinstance(out, torch.Tensor):
            source = args[1] if name == "copy_" else args[0]
            if source.device.type != "cpu" and out.device.type == "cpu" and not (kwargs or {}).get("non_blocking"):
                self.calls.append(f"{name} to the host")
        return out


class Untouched:
    """Asserts that a block changed no given tensor, no random state, and left no reference to them."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = [t for t in tensors if t is not None]

    def __enter__(self):
        self.copies = [t.detach().clone() for t in self.tensors]
        self.versions = [t._version for t in self.tensors]
        self.random = torch.get_rng_state()
        return self

    def __exit__(self, *error):
        if error[0] is None:
            assert torch.equal(self.random, torch.get_rng_state())
            for tensor, copy, version in zip(self.tensors, self.copies, self.versions, strict=True):
                assert tensor._version == version
                assert torch.equal(torch.nan_to_num(tensor.detach()), torch.nan_to_num(copy))
