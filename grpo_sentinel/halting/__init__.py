"""From findings to a stopped run with a good checkpoint: requests, their progress, escalation, pinned checkpoints."""

from __future__ import annotations

from grpo_sentinel.halting.controller import HaltController, HaltRefused
from grpo_sentinel.halting.launcher import LauncherHandle, NodeLauncher
from grpo_sentinel.halting.under_way import HALTING

__all__ = ["HALTING", "HaltController", "HaltRefused", "LauncherHandle", "NodeLauncher"]
