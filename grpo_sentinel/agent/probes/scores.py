"""Reward layer: what a loop calls its scores, as one matrix. None stands for NaN in all of them, as in TRL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch


def score_matrix(rewards: Any) -> tuple[torch.Tensor, list[str]]:
    """Give scores as a matrix (rows x functions), None as NaN, and the functions' names where they are known.

    Takes a tensor, a list of scores, a list of rows, or a dict of lists. Raises ValueError, TypeError or RuntimeError
    for anything else.
    """
    if isinstance(rewards, Mapping):
        columns = {str(name): _column(scores) for name, scores in rewards.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"lengths of the functions' scores: {lengths}" if lengths else "an empty dict")
        return torch.stack(list(columns.values()), dim=1), list(columns)
    if isinstance(rewards, torch.Tensor):
        scores = rewards
    elif rewards is None or isinstance(rewards, str | bytes):
        raise TypeError(f"rewards={rewards!r:.40}")
    elif any(isinstance(row, list | tuple) for row in rewards):
        scores = torch.tensor([[_number(score) for score in row] for row in rewards], dtype=torch.float64)
    elif any(row is None for row in rewards):
        scores = _column(rewards)
    else:
        scores = torch.as_tensor(rewards)
    return (scores.unsqueeze(1) if scores.dim() == 1 else scores), []


def _column(scores: Any) -> torch.Tensor:
    if isinstance(scores, torch.Tensor):
        return scores.detach().double().reshape(-1).cpu()
    return torch.tensor([_number(score) for score in scores], dtype=torch.float64)


def _number(score: Any) -> float:
    return math.nan if score is None else float(score)
