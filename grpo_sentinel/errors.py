"""Errors that a person may read: one sentence with the value, the place and the remedy.

Every error that leaves the product is a `SentinelError`; the command line prints its text and exits with
`exit_code`, without a traceback. Inside the trainer nothing is raised at all (see `agent.guard`).
"""

from __future__ import annotations


class SentinelError(Exception):
    """Base of all errors shown to a user; `str(error)` is one full sentence."""

    exit_code = 2


class ConfigError(SentinelError):
    """Settings, rules or arguments are wrong; each of `mistakes` names key, value, file and line where known."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


class SegmentError(SentinelError):
    """A ring segment cannot be created or read: no space, no permission, wrong version, not a segment."""


class HistoryError(SentinelError):
    """The history cannot be opened: missing, written by a newer version, not ours, not readable."""


class DaemonUnavailable(SentinelError):
    """No sidecar answers for the run that a command names."""

    exit_code = 3
