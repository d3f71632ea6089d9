"""Ranks that failed because another one had gone: their own exception says so, in the words of the transport."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_WORDS = re.compile(
    r"connection (was likely )?(closed|reset)|closed by peer|broken pipe|gloo\S*pair\.cc|remote process exited"
    r"|failed to recv, got 0 bytes|timed out waiting \d+ms for (recv|send)|peer (has )?(closed|disconnected)",
    re.IGNORECASE,
)
TOLD_BY = frozenset({"rank_dead", "trainer_exception"})
"""Rules whose findings are a consequence when they are about such a rank."""


def tells_of_a_lost_peer(body: Mapping[str, Any]) -> bool:
    """Tell whether an `exception` event is of a rank left alone in a collective (gloo, NCCL, store)."""
    return _WORDS.search(f"{body.get('message', '')}") is not None
