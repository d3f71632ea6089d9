"""Data layer: the prompt groups of a generation batch, compared by hash on the host."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any


def observe_groups(
    prompts: Sequence[Any], completions: Sequence[Any] | None = None, *, group_size: int
) -> dict[str, float]:
    """Judge the groups of a generation batch: one prompt per group, duplicates inside and across groups.

    `prompts` and `completions` are in trainer order (a group's members adjacent): texts, chat lists, id sequences or
    tensors on the CPU. A last group that is cut short by the batch's end is judged as it stands. No text is kept.
    """
    if group_size < 1 or not len(prompts):
        return {}
    keys = [digest(prompt) for prompt in prompts]
    groups = [keys[start : start + group_size] for start in range(0, len(keys), group_size)]
    out = {
        "data.mixed_groups": float(sum(len(set(group)) > 1 for group in groups)),
        "data.duplicate_prompt_ratio": _duplicate_prompts(groups),
    }
    if completions is not None and len(completions) == len(prompts):
        answers = [digest(completion) for completion in completions]
        shares = [
            1.0 - len(set(answers[start : start + group_size])) / len(answers[start : start + group_size])
            for start in range(0, len(answers), group_size)
        ]
        out["data.duplicate_completion_ratio"] = sum(shares) / len(shares)
    return out


def shared_over_ranks(samples: Sequence[Any], *, rows: int, rank: int) -> dict[str, float]:
    """Judge whether ranks work on different samples: `samples` of all ranks, `rows` from each, in rank order.

    Only where every group stays on one rank: else a prompt stands on several by design.
    """
    keys = [digest(list(sample)) for sample in samples]
    own = keys[rank * rows : (rank + 1) * rows]
    others = set(keys[: rank * rows] + keys[(rank + 1) * rows :])
    return {"data.duplicate_over_ranks_ratio": sum(key in others for key in own) / rows}


def digest(item: Any) -> str:
    """Hash a text, a chat, or a sequence of ids; equal content gives an equal digest in every process."""
    if hasattr(item, "tolist"):
        item = item.tolist()
    text = item if isinstance(item, str) else json.dumps(item, sort_keys=True, default=str, ensure_ascii=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _duplicate_prompts(groups: Sequence[Sequence[str]]) -> float:
    """Share of distinct prompts per group that also stand in another group."""
    present = Counter(prompt for group in groups for prompt in set(group))
    total = sum(present.values())
    return sum(count for count in present.values() if count > 1) / total
