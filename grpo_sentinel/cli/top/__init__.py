"""`grpo-sentinel top`: keys → state, state and snapshot → screen; the only part that waits is the loop."""

from grpo_sentinel.cli.top.command import top

__all__ = ["top"]
