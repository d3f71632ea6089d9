"""`check policy` (S17-S24): one step of the policy on real samples, every number of it judged. torch comes by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_shapes import Fields
from grpo_sentinel.preflight.report import CheckReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """What the caller asks for besides the policy; lengths in tokens, `timeout_seconds` is for all of it."""

    reference: str = ""
    reward_model: str = ""  # directory
    reward: str = ""  # MODULE:FUNCTION
    data: tuple[str, ...] = ()
    fields: Fields = field(default_factory=Fields)
    second: tuple[str, ...] = ()  # dtype, attention implementation, or a JSONL file of log-probs
    dtype: str = "float32"
    device: str = ""
    attention: str = ""
    samples: int = 100
    group_size: int = 4
    max_tokens: int = 32
    beta: float = 0.04  # weight of the KL term in the step that is tried
    trained: bool | None = None  # None: by the checkpoint's own step
    max_gap_nats: float = 0.05  # mean |log-prob difference| between engines
    seed: int = 0
    timeout_seconds: float = 45.0


def check_policy(target: str, options: PolicyOptions | None = None) -> CheckReport:
    """Check one policy. Raises `SentinelError` when it cannot be loaded or its inputs cannot be read."""
    module = require_torch("grpo_sentinel.preflight.live.policy_check", "check policy")
    return module.check(target, options or PolicyOptions())  # type: ignore[no-any-return]


def require_torch(module: str, what: str) -> Any:
    """Import one of our modules that needs torch and transformers. Raises `SentinelError` where they are missing."""
    try:
        import_module("torch")
        import_module("transformers")
    except ImportError as error:
        raise SentinelError(
            f"{what} runs a model: it needs torch and transformers: pip install torch transformers"
        ) from error
    return import_module(module)


__all__ = ["PolicyOptions", "check_policy", "require_torch"]
