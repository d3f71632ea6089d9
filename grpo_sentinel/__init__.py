"""grpo-sentinel: watches a GRPO training run, names what breaks, and stops it while a checkpoint is still good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpo_sentinel._version import __version__

if TYPE_CHECKING:
    from grpo_sentinel.agent import Agent, attach
    from grpo_sentinel.sanitize import sanitize_rewards

__all__ = ["Agent", "__version__", "attach", "sanitize_rewards"]


def __getattr__(name: str) -> Any:
    """Load what is public on first use, so that importing the package costs and imports nothing."""
    if name in ("Agent", "attach"):
        from grpo_sentinel import agent

        return getattr(agent, name)
    if name == "sanitize_rewards":
        from grpo_sentinel.sanitize import sanitize_rewards

        return sanitize_rewards
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
