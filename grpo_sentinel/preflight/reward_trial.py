"""Calls of a reward under a deadline: scores, what was raised and by which sample, and how long it took."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.graph_watch import GraphSeen, watch_graph
from grpo_sentinel.preflight.on_stderr import on_stderr
from grpo_sentinel.preflight.report import excerpt
from grpo_sentinel.preflight.reward_target import Misfit, Sample, Scorer
from grpo_sentinel.preflight.telling import is_careful, tell

KEEPS_GRAPH = "score inside torch.no_grad() or torch.inference_mode()"
_PIECE_SECONDS = 2.0
_MOST_AT_ONCE = 16  # texts in one forward of a model: what fits beside a trainer's own


class OutOfTime(Exception):
    """The reward did not answer before the deadline."""


@dataclass(slots=True)
class Trial:
    """A scorer with what happened to it so far. A call of a function that hangs is left behind in a daemon thread."""

    scorer: Scorer
    deadline: float  # of time.monotonic()
    raised: dict[str, str] = field(default_factory=dict)  # place -> error
    odd: dict[str, str] = field(default_factory=dict)  # place -> what is no number
    nonfinite: dict[str, str] = field(default_factory=dict)  # place -> NaN or an infinity
    misfits: dict[str, Misfit] = field(default_factory=dict)  # code -> the first of its kind
    latencies: list[float] = field(default_factory=list)  # seconds per sample, by call
    calls: int = 0
    samples: int = 0  # asked for
    scored: int = 0  # finite numbers that came back
    graph: GraphSeen = field(default_factory=GraphSeen)
    alone: bool = False  # score each sample by itself: its company and place would change its score

    def score(self, samples: Sequence[Sample], *, strict: bool = False) -> list[float | None]:
        """Score a batch; of one that raises, each sample is tried alone, unless `strict`. None = raised or abstained.

        Raises `OutOfTime`, and with `strict` what the reward raises.
        """
        if not samples:
            return []
        try:
            values = self._within(samples)
        except (OutOfTime, SentinelError):
            raise
        except Misfit as misfit:  # of the function and not of one sample: each alone would fare no better
            self.misfits.setdefault(misfit.code, misfit)
            if strict:
                raise
            return [None] * len(samples)
        except Exception as error:  # a user's reward may raise anything
            if len(samples) > 1 and not strict:
                out = [value for one in samples for value in self.score([one])]
                if not any(one.place in self.raised for one in samples):  # it is the batch that it cannot take
                    self.raised[f"{samples[0].place} and {len(samples) - 1} more together"] = _told(error)
                return out
            self.raised.setdefault(samples[0].place, _told(error))
            if strict:
                raise
            return [None] * len(samples)
        return [self._number(sample, value) for sample, value in zip(samples, values, strict=True)]

    def _number(self, sample: Sample, value: Any) -> float | None:
        if value is None:
            return None
        try:
            if isinstance(value, (str, bytes)):  # float() would take it, torch.tensor() does not
                raise TypeError
            number = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError):
            self.odd.setdefault(sample.place, f"{type(value).__name__} {excerpt(repr(value), 40)}")
            return None
        if math.isfinite(number):
            self.scored += 1
        else:
            self.nonfinite.setdefault(sample.place, f"{number}")
        return number

    def graph_kept(self) -> str:
        """What a reward keeps for a backward that never comes (S31), in one sentence; "" for nothing."""
        if self.graph.tensors:
            saved = f"{self.graph.tensors:,} tensors ({self.graph.bytes / 1e6:,.1f} MB) in {self.calls:,} calls"
            return f"it runs a model with autograd: {saved} were saved for a backward that never comes"
        return "its scores need a gradient: each keeps the graph that made it" if self.scorer.attached else ""

    def _within(self, samples: Sequence[Sample]) -> list[Any]:
        # What a reward prints must not end in our JSON. Redirected here and not in its thread: one that hangs there
        # would keep the whole process' output, the report with it.
        with on_stderr():
            if self.scorer.is_model:
                return self._in_pieces(samples)
            return [one for piece in self._pieces(samples) for one in self._in_thread(piece)]

    def _pieces(self, samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
        """All at once; one by one where each must be scored by itself."""
        size = 1 if self.alone or is_careful() else len(samples)
        for start in range(0, len(samples), size):
            yield samples[start : start + size]

    def _in_pieces(self, samples: Sequence[Sample]) -> list[Any]:
        """A model's forward cannot be left behind: pieces of about two seconds, and the time is looked at between."""
        out: list[Any] = []
        while len(out) < len(samples):
            began = time.monotonic()
            if began > self.deadline:
                raise OutOfTime
            fits = int(_PIECE_SECONDS / max(self.latencies[-1], 1e-9)) if self.latencies else 1
            piece = samples[len(out) : len(out) + max(1, min(_MOST_AT_ONCE, fits))]
            out += self.scorer.score(piece)
            self.calls += 1
            self.samples += len(piece)
            self.latencies.append((time.monotonic() - began) / len(piece))
        return out

    def _in_thread(self, samples: Sequence[Sample]) -> list[Any]:
        done: list[list[Any]] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                with watch_graph(self.graph):
                    done.append(self.scorer.score(samples))
            except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, SystemExit too
                failed.append(error)

        began = time.monotonic()
        tell("doing", what="score", place=samples[0].place, count=len(samples), seconds=max(0.0, self.deadline - began))
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(max(0.0, self.deadline - began))
        tell("done")
        if thread.is_alive():
            raise OutOfTime
        self.calls += 1
        self.samples += len(samples)
        self.latencies.append((time.monotonic() - began) / len(samples))
        if failed:
            error = failed[0]
            raise error if isinstance(error, Exception) else RuntimeError(f"it ended the process: {error!r}")
        return done[0]


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {excerpt(str(error))}"


def finite_pairs(first: Sequence[float | None], second: Sequence[float | None]) -> list[tuple[float, float]]:
    """The pairs in which both are finite numbers."""
    return [
        (a, b)
        for a, b in zip(first, second, strict=True)
        if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)
    ]


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, ties share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    out = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            out[place] = (start + end) / 2 + 1
        start = end + 1
    return out


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Rank correlation in [-1, 1] (Pearson's of the ranks, ties at their mean); None when one side does not vary."""
    x, y = ranks([a for a, _ in pairs]), ranks([b for _, b in pairs])
    middle = (len(pairs) + 1) / 2
    cross = math.fsum((a - middle) * (b - middle) for a, b in zip(x, y, strict=True))
    size = math.sqrt(math.fsum((a - middle) ** 2 for a in x) * math.fsum((b - middle) ** 2 for b in y))
    return cross / size if size else None


__all__ = ["KEEPS_GRAPH", "OutOfTime", "Trial", "finite_pairs", "ranks", "spearman"]
