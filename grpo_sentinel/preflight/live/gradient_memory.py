"""Memory of a backward: what training this model needs (S30), whether repeating one keeps more (S29), and headroom."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from grpo_sentinel.agent.probes.memory import parse_meminfo
from grpo_sentinel.preflight.findings import Findings
from grpo_sentinel.preflight.growth import ROUNDS, growth_of
from grpo_sentinel.preflight.live.carriers import Carriers
from grpo_sentinel.preflight.live.loading import Loaded
from grpo_sentinel.preflight.live.rollout import Batch
from grpo_sentinel.preflight.live.scoring import backward
from grpo_sentinel.preflight.live.spread import FP16_LARGEST
from grpo_sentinel.preflight.look import Level

_ADAM_BYTES = 8  # two float32 moments of every trained element
_LOSS_SCALE = 65536.0  # where torch.amp.GradScaler begins


def memory(found: Findings, loaded: Loaded) -> None:
    """What weights, gradients and Adam's moments of this model need, against what there is (S30)."""
    sizes = [(one.numel(), one.element_size(), one.requires_grad) for one in loaded.model.parameters()]
    weights = sum(count * size for count, size, _ in sizes)
    trained = sum(count * (size + _ADAM_BYTES) for count, size, grad in sizes if grad)
    free = _free_bytes(loaded.device)
    found.facts["memory_bytes"] = {"weights": weights, "gradients_and_moments": trained, "free_now": free}
    if free is not None and trained > free:
        found.doubtful(
            "memory", f"gradients and Adam's moments need {trained / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free "
            f"on {loaded.device}: one process cannot train this model here",
            "shard it (FSDP, ZeRO), train adapters, or use an 8-bit optimizer",
        )  # fmt: skip


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    try:
        available = parse_meminfo(Path("/proc/meminfo").read_text()).get("MemAvailable")
    except OSError:
        return None
    return None if available is None else int(available)


def growth(
    found: Findings,
    loaded: Loaded,
    batch: Batch,
    weights: torch.Tensor,
    old_BC: torch.Tensor,
    until: float,
    each: float,
) -> None:
    """The same sample's backward again and again must not keep more memory each time (S29)."""
    if time.monotonic() + 3 * each * (ROUNDS + 2) > until:
        found.not_seen.append("whether each backward keeps more memory: there was no time to repeat one (--timeout)")
        return

    def work() -> None:
        loaded.model.zero_grad(set_to_none=True)
        backward(loaded, batch, weights, old_BC, None, 0.0, slice(0, 1))

    grown = growth_of(work)
    loaded.model.zero_grad(set_to_none=True)
    found.looked_at.append(f"memory over {ROUNDS} backwards of the same sample: tensors, objects, files, threads, "
                           "the process")  # fmt: skip
    if grown:
        found.doubtful(
            "memory-grows", f"each forward and backward of the same sample keeps more: {grown[0].says()}",
            "let go of what a step made: losses and outputs that are kept without .detach() hold their whole graph",
            len(grown), [one.says() for one in grown], grown[0].kind,
        )  # fmt: skip


def headroom(found: Findings, loaded: Loaded, carriers: Carriers, largest_logit: float) -> None:
    """How near float16 and bfloat16 are to their limits with these numbers."""
    layers = found.facts["layers"]
    assert isinstance(layers, dict)
    largest = max((one.get("max", 0.0) for one in layers.values()), default=0.0)
    activation = max(carriers.largest_hidden, largest_logit)
    found.facts["headroom"] = {
        "largest_gradient": largest, "float16_at_loss_scale_65536": largest * _LOSS_SCALE / FP16_LARGEST,
        "largest_activation": activation, "float16_activation": activation / FP16_LARGEST,
    }  # fmt: skip
    found.looked_at.append("headroom of float16 and bfloat16: gradients, activations, logits")
    if activation > FP16_LARGEST / 4:
        level = Level.BROKEN if loaded.dtype == "float16" else Level.DOUBTFUL
        found.add(level, "float16-activations", f"activations reach {activation:,.0f}; float16 ends at 65,504",
                  "use bfloat16, which ends at 3e38")  # fmt: skip
    if largest * _LOSS_SCALE > FP16_LARGEST:
        found.notes.append(
            f"float16 with a loss scale of 65,536 would overflow (largest gradient {largest:.3g}): the scaler begins "
            "by skipping updates"
        )


__all__ = ["growth", "headroom", "memory"]
