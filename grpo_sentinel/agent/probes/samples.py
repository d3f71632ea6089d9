"""Which samples are behind a signal: rows of a batch, with what tells a sample apart without showing its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from grpo_sentinel.agent.probes.groups import digest

_NAMED = 4  # rows per event
_IDS = ("id", "sample_id", "uid", "uuid", "index", "question_id", "problem_id", "task_id")

Identify = Callable[[int], Mapping[str, Any]]


def blamed(
    samples: Mapping[str, Sequence[int]], first: int, ids_BT: Any, identify: Identify | None = None
) -> Iterator[dict[str, Any]]:
    """Make the body of an event `sample` for each signal that has rows behind it.

    `samples`: rows by signal, counted over the step; those before `first` were told of already. `ids_BT`: token ids of
    this batch (B rows), whose digest names a row where nothing better is known; copied for the bad rows only.
    """
    for signal, rows in samples.items():
        new = [row - first for row in rows if row >= first]
        if not new:
            continue
        named = [{"row": row, **(identify or _by_ids(ids_BT))(row)} for row in new[:_NAMED]]
        yield {"signal": signal, "rows": new, "samples": named, "text": "; ".join(map(_words, named))}


def dataset_id(sample: Any) -> dict[str, Any]:
    """Find what a data set calls the sample, where it has a column for that."""
    if not isinstance(sample, Mapping):
        return {}
    found = next((sample[name] for name in _IDS if isinstance(sample.get(name), (str, int))), None)
    return {} if found is None else {"id": str(found)[:64]}


def _by_ids(ids_BT: Any) -> Identify:
    def identify(row: int) -> dict[str, str]:
        if not isinstance(ids_BT, torch.Tensor) or ids_BT.dim() != 2 or row >= len(ids_BT):
            return {}
        return {"prompt_digest": digest(ids_BT[row])}

    return identify


def _words(named: Mapping[str, Any]) -> str:
    rest = ", ".join(f"{name} {value}" for name, value in named.items() if name != "row")
    return f"row {named['row']}" + (f" ({rest})" if rest else "")
