"""The trainer's side: `attach()` and what it returns. Importing this package loads neither torch nor a trainer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_sentinel.agent.agent import Agent
    from grpo_sentinel.agent.entry import attach
    from grpo_sentinel.agent.null import NullAgent, Verdict
    from grpo_sentinel.agent.settings import Settings

__all__ = ["Agent", "NullAgent", "Settings", "Verdict", "attach"]

_HOME = {
    "Agent": "grpo_sentinel.agent.agent",
    "attach": "grpo_sentinel.agent.entry",
    "NullAgent": "grpo_sentinel.agent.null",
    "Verdict": "grpo_sentinel.agent.null",
    "Settings": "grpo_sentinel.agent.settings",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use: the `.pth` imports this package in every interpreter of the job."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
