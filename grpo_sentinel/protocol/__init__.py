"""The bytes between trainer and daemon: one ring segment per rank, one control file per run. See `layout`."""

from __future__ import annotations

from grpo_sentinel.protocol.control import ControlReader, write_control
from grpo_sentinel.protocol.identity import (
    derive_parent_run_id,
    derive_run_id,
    new_identity,
    run_id_is_given,
    sanitise_run_id,
)
from grpo_sentinel.protocol.layout import Geometry
from grpo_sentinel.protocol.places import candidate_roots, choose_root, list_segments, run_dir, user_dir
from grpo_sentinel.protocol.reader import Batch, RankReader
from grpo_sentinel.protocol.writer import RankWriter
from grpo_sentinel.views import Cursor

__all__ = [
    "Batch",
    "ControlReader",
    "Cursor",
    "Geometry",
    "RankReader",
    "RankWriter",
    "candidate_roots",
    "choose_root",
    "derive_parent_run_id",
    "derive_run_id",
    "list_segments",
    "new_identity",
    "run_dir",
    "run_id_is_given",
    "sanitise_run_id",
    "user_dir",
    "write_control",
]
