"""Sources of replay: whatever a past run left behind, read as frames, events and readings in constant memory.

    path ─▶ open.open_path ─▶ base.Source ─▶ items: Frame | EventRecord | Sample ─▶ the rules engine

Incident bundles are read by `incidents.bundle`; the command line joins both.
"""

from grpo_sentinel.history.sources.base import Item, Progress, Source, SourceError
from grpo_sentinel.history.sources.open import KINDS, open_path

__all__ = ["KINDS", "Item", "Progress", "Source", "SourceError", "open_path"]
