"""The SQLite history of runs: one writer per sidecar, any number of readers, replay of stored runs."""

from grpo_sentinel.history.database import history_path
from grpo_sentinel.history.reader import HistoryReader, RunInfo
from grpo_sentinel.history.replay import frames
from grpo_sentinel.history.series import Series
from grpo_sentinel.history.store import HistoryStore

__all__ = ["HistoryReader", "HistoryStore", "RunInfo", "Series", "frames", "history_path"]
