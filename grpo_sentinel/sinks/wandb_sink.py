"""Weights & Biases as a sink: its client runs in a child process, see `wandb_tracker`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from grpo_sentinel.sinks.base import SinkContext
from grpo_sentinel.sinks.child_process import ChildSink, incident_watch

_OF_THE_TRAINER = (
    "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_NAME", "WANDB_NOTES", "WANDB_TAGS", "WANDB_SWEEP_ID", "WANDB_JOB_TYPE",
    "WANDB_RUN_GROUP", "WANDB_MODE", "WANDB_DISABLED", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_DIR", "WANDB_SERVICE",
    "GRPO_SENTINEL",
)  # fmt: skip
"""Variables that say what the trainer's own run is; in our client they would write into that run."""


def make(context: SinkContext) -> ChildSink:
    """Make the sink; the child is started with the first batch."""
    config = context.config.wandb
    settings = config.model_dump(mode="json")
    settings["directory"] = str(Path(config.directory or context.state_dir / "wandb"))
    settings["group"] = config.group or os.environ.get("WANDB_RUN_GROUP") or os.environ.get("WANDB_RUN_ID")
    settings["trainer_run"] = os.environ.get("WANDB_RUN_ID")
    return ChildSink(
        "wandb",
        settings,
        context.clock,
        ranks=config.ranks,
        spool_bytes=config.spool_bytes,
        exit_seconds=config.exit_seconds,
        incidents=incident_watch(context, "wandb") if config.incidents else None,
        environment=environment(os.environ),
    )


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: credentials and addresses as they are, nothing of the trainer's own run."""
    kept = {name: value for name, value in inherited.items() if name not in _OF_THE_TRAINER}
    return {"WANDB_ERROR_REPORTING": "false", **kept, "WANDB_SILENT": "true"}
