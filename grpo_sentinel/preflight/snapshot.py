"""Snapshots of one step (S40): what a healthy step gave, to be compared with the step after a fix or an upgrade.

    {"schema": "grpo-sentinel/snapshot", "version": 1, "source", "kind", "dtype", "seed", "versions",
     "samples":    {"digest", "count", "prompt_ids": [[...]], "completion_ids": [[...]],
                    "texts": [{"prompt", "completion", "answer", "place", "columns"}]},
     "loss", "rewards": [...], "log_probs": [[...]],
     "attached":   [name, ...] what keeps an autograd graph and should not,
     "layers":     [{"name", "weights" (SHA-256), "activation" (L2 norm), "gradient" (L2 norm)}, ...] in forward order}

What a source does not know is null, and is then not compared.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_sentinel.errors import SentinelError

SCHEMA = "grpo-sentinel/snapshot"
SCHEMA_VERSION = 1
_MOST_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """One layer: digest of its weights, L2 norms of its output and of its gradient; "" and None where not known."""

    name: str
    weights: str = ""
    activation: float | None = None
    gradient: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What the step was made on; the ids are kept so that another model can be given the very same samples."""

    digest: str = ""
    count: int = 0
    prompt_ids: tuple[tuple[int, ...], ...] = ()
    completion_ids: tuple[tuple[int, ...], ...] = ()
    texts: tuple[Mapping[str, Any], ...] = ()  # prompt, completion, answer, columns: what a reward is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One step."""

    source: str
    kind: str  # model, loop, trainer, bundle
    dtype: str
    seed: int
    samples: Samples
    loss: float | None = None
    rewards: tuple[float, ...] | None = None
    log_probs: tuple[tuple[float, ...], ...] | None = None
    layers: tuple[LayerState, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    attached: tuple[str, ...] | None = None  # S31: inputs of the loss with a graph, passes before it with autograd

    def to_json(self) -> dict[str, Any]:
        """Give it in its versioned schema."""
        return {
            "schema": SCHEMA, "version": SCHEMA_VERSION, "source": self.source, "kind": self.kind, "dtype": self.dtype,
            "seed": self.seed, "versions": dict(self.versions),
            "samples": {
                "digest": self.samples.digest, "count": self.samples.count,
                "prompt_ids": self.samples.prompt_ids, "completion_ids": self.samples.completion_ids,
                "texts": [dict(one) for one in self.samples.texts],
            },
            "attached": self.attached,
            "loss": _told(self.loss), "rewards": _all_told(self.rewards),
            "log_probs": None if self.log_probs is None else [_all_told(row) for row in self.log_probs],
            "layers": [
                {"name": one.name, "weights": one.weights, "activation": _told(one.activation),
                 "gradient": _told(one.gradient)}
                for one in self.layers
            ],
        }  # fmt: skip


def digest_of(*parts: object) -> str:
    """SHA-256 of parts that print the same when they are the same."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def save(snapshot: Snapshot, path: Path) -> None:
    """Write strict JSON (NaN is the text "NaN"), whole or not at all. Raises `SentinelError`."""
    draft = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(_strict(snapshot.to_json()), allow_nan=False) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise SentinelError(f"cannot write {path}: {error.strerror}; give a writable place") from error


def _strict(value: Any) -> Any:
    """Columns of a user's data may hold NaN."""
    if isinstance(value, dict):
        return {key: _strict(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(one) for one in value]
    return _told(value) if isinstance(value, float) else value


def load(path: Path) -> Snapshot:
    """Read one. Raises `SentinelError` when it is none, or newer than we are."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise SentinelError(f"{path} is too large for a snapshot ({path.stat().st_size:,} bytes)")
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SentinelError(f"cannot read {path}: {error.strerror}; give a file that `snapshot save` wrote") from error
    except (ValueError, RecursionError) as error:
        raise SentinelError(f"{path} is no snapshot: it is not JSON; give a file that `snapshot save` wrote") from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise SentinelError(f"{path} is no snapshot; give a file that `snapshot save` wrote")
    if body.get("version") != SCHEMA_VERSION:
        raise SentinelError(
            f"{path} is a snapshot of version {body.get('version')}, this program knows {SCHEMA_VERSION}"
        )
    try:
        return _from(body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SentinelError(f"{path} is damaged: {type(error).__name__}: {error}; save it again") from error


def _from(body: dict[str, Any]) -> Snapshot:
    samples = body["samples"]
    rewards, log_probs = body["rewards"], body["log_probs"]
    return Snapshot(
        source=str(body["source"]), kind=str(body["kind"]), dtype=str(body["dtype"]), seed=int(body["seed"]),
        versions={str(key): str(value) for key, value in body["versions"].items()},
        samples=Samples(
            digest=str(samples["digest"]), count=int(samples["count"]),
            prompt_ids=tuple(tuple(int(one) for one in row) for row in samples["prompt_ids"]),
            completion_ids=tuple(tuple(int(one) for one in row) for row in samples["completion_ids"]),
            texts=tuple(dict(one) for one in samples["texts"]),
        ),
        attached=None if body.get("attached") is None else tuple(str(one) for one in body["attached"]),
        loss=_number(body["loss"]),
        rewards=None if rewards is None else tuple(float(one) for one in rewards),
        log_probs=None if log_probs is None else tuple(tuple(float(one) for one in row) for row in log_probs),
        layers=tuple(
            LayerState(name=str(one["name"]), weights=str(one["weights"]), activation=_number(one["activation"]),
                       gradient=_number(one["gradient"]))
            for one in body["layers"]
        ),
    )  # fmt: skip


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _told(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _all_told(values: tuple[float, ...] | None) -> list[float | str | None] | None:
    return None if values is None else [_told(one) for one in values]


__all__ = ["SCHEMA", "SCHEMA_VERSION", "LayerState", "Samples", "Snapshot", "digest_of", "load", "save"]
