"""Where a snapshot comes from: a model directory, a loop or trainer that a function builds, or an incident bundle."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, field
from pathlib import Path

from grpo_sentinel._version import __version__
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.incidents.bundle import open_bundle
from grpo_sentinel.preflight.data_shapes import Fields
from grpo_sentinel.preflight.policy import require_torch
from grpo_sentinel.preflight.snapshot import LayerState, Samples, Snapshot, digest_of
from grpo_sentinel.records import Kind, Mode, StepRecord

_PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "tokenizers")
_GROUP_NORM = "gradient.group_norm["


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """What the caller asks for besides the source."""

    data: tuple[str, ...] = ()
    fields: Fields = field(default_factory=Fields)
    reward: str = ""
    samples: int = 8
    max_tokens: int = 32
    dtype: str = "float32"
    device: str = ""
    seed: int = 0
    like: Snapshot | None = None  # take the very samples of this one


def versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    out = {"grpo-sentinel": __version__}
    for name in _PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def take(source: str, options: SnapshotOptions) -> Snapshot:
    """Take one of a model directory, or of MODULE:FUNCTION. Raises `SentinelError`."""
    if ":" not in source and not Path(source).expanduser().is_dir():
        raise SentinelError(f"{source} is neither a model directory nor MODULE:FUNCTION")
    module = require_torch("grpo_sentinel.preflight.live.snapshot_run", "snapshot save")
    return module.take(source, options)  # type: ignore[no-any-return]


def from_bundle(path: Path, step: int | None, rank: int = 0) -> Snapshot:
    """Take what an incident bundle recorded of one step: by default the last before the onset.

    Raises `SentinelError` when the bundle cannot be read, or holds no such step.
    """
    with open_bundle(path) as bundle:
        onset = bundle.about.onset_step
        steps: dict[int, dict[str, float]] = {}
        for record in bundle.records():
            if record.rank == rank and record.mode is Mode.TRAIN:
                _merge(steps.setdefault(record.step, {}), record)
        wanted = step if step is not None else max((one for one in steps if one < onset), default=None)
        if wanted is None or wanted not in steps:
            have = f"{min(steps)} to {max(steps)}" if steps else "none"
            what = "a step before the onset" if step is None else f"step {step}"
            raise SentinelError(f"{path} has no record of {what} "
                                f"on rank {rank} (steps: {have}); name another with --step")  # fmt: skip
        return _recorded(path, wanted, rank, steps[wanted], dict(bundle.source().trainer))


def _merge(into: dict[str, float], record: StepRecord) -> None:
    if record.kind in (Kind.STEP, Kind.GENERATION, Kind.DATA):
        into.update(record.values)


def _recorded(path: Path, step: int, rank: int, values: dict[str, float], trainer: dict[str, object]) -> Snapshot:
    seed = trainer.get("seed")
    layers = [
        LayerState(name=name[len(_GROUP_NORM) : -1], gradient=value)
        for name, value in values.items() if name.startswith(_GROUP_NORM)
    ]  # fmt: skip
    if "gradient.norm_preclip" in values:
        layers.append(LayerState(name="all parameters", gradient=values["gradient.norm_preclip"]))
    mean = values.get("reward.mean")
    dtype = next(
        (kind for kind, key in (("bfloat16", "bf16"), ("float16", "fp16")) if trainer.get(key) is True), "float32"
    )
    return Snapshot(
        source=f"{path.name} step {step}", kind="bundle", dtype=dtype, seed=seed if isinstance(seed, int) else 0,
        samples=Samples(digest=digest_of("step", step, "rank", rank), count=0), loss=values.get("policy.loss"),
        rewards=None if mean is None else (mean,),
        log_probs=None if "policy.logp_mean" not in values else ((values["policy.logp_mean"],),),
        layers=tuple(layers),
    )  # fmt: skip


__all__ = ["SnapshotOptions", "from_bundle", "take", "versions"]
