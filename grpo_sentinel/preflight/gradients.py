"""`check gradients` (S25-S35): one backward of a checkpoint, who carries it, who would use it. torch comes by name."""

from __future__ import annotations

from dataclasses import dataclass, field

from grpo_sentinel.preflight.data_shapes import Fields
from grpo_sentinel.preflight.policy import require_torch
from grpo_sentinel.preflight.report import CheckReport


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientOptions:
    """What the caller asks for besides the checkpoint; the limits are those of S25 to S27."""

    data: tuple[str, ...] = ()
    fields: Fields = field(default_factory=Fields)
    reward: str = ""  # MODULE:FUNCTION or directory of a reward model: real advantages
    dtype: str = "float32"
    device: str = ""
    samples: int = 16
    group_size: int = 4
    max_tokens: int = 64
    max_norm: float | None = None  # S27: scales differ, so none until set
    spike: float = 10.0  # S25: max above this many means is one sign
    most_share: float = 0.5  # of the squared norm that one sample or token may carry
    seed: int = 0
    timeout_seconds: float = 45.0


def check_gradients(target: str, options: GradientOptions | None = None) -> CheckReport:
    """Check one checkpoint. Raises `SentinelError` when it cannot be loaded or its inputs cannot be read."""
    module = require_torch("grpo_sentinel.preflight.live.gradient_check", "check gradients")
    return module.check(target, options or GradientOptions())  # type: ignore[no-any-return]


__all__ = ["GradientOptions", "check_gradients"]
