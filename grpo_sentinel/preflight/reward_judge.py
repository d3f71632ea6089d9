"""Try a reward on gold completions, wrong ones and canaries, and judge what it says; `reward_robust` goes on."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from grpo_sentinel.preflight.findings import Findings
from grpo_sentinel.preflight.growth import ROUNDS, growth_of
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import excerpt
from grpo_sentinel.preflight.reward_cases import Perturbation, canaries
from grpo_sentinel.preflight.reward_enumeration import try_lists
from grpo_sentinel.preflight.reward_head import head_loss
from grpo_sentinel.preflight.reward_repeat import try_again
from grpo_sentinel.preflight.reward_robust import Limits, try_lengths, try_perturbations
from grpo_sentinel.preflight.reward_target import Sample, columns_of
from grpo_sentinel.preflight.reward_trial import KEEPS_GRAPH, Trial, finite_pairs

CASES = 20  # of each class (S15)
_KEY_ERROR = re.compile(r"KeyError: '(.+)'$")
_FORMAT = "wrong format"  # may tie with gold: a lenient reward is no fault
_TYPO = "typo in the answer"
_BY_BATCH = ("order", "company", "batch-size")
_GROWTH_SHARE = 0.25  # of the time that is left, for seeing whether memory grows

Scores = list[float | None]


class RewardJudge:
    """Runs the tries in order; each notes what it found. All scores of one try are one call of `Trial.score`."""

    def __init__(
        self,
        trial: Trial,
        gold: Sequence[Sample],
        low: float | None,
        high: float | None,
        cases: int = CASES,
        template: str = "{answer}",
    ) -> None:
        self._trial, self._gold, self._cases = trial, list(gold), cases
        self._low, self._high = low, high
        self._wrong = [_with_completion_of(one, other) for one, other in _paired(self._gold)]
        self._templated = frozenset(template.replace("{answer}", one.answer) for one in self._gold if one.answer)
        self._gold_scores: Scores = []
        self._wrong_scores: Scores = []
        self._scale = 1.0  # half the range: a difference divided by it is on the scale [-1, 1]
        self.apart = True  # scores differ, so that there is something to win
        self.found = Findings(trial.scorer.name)

    def scores(self) -> bool:
        """Finite, in range, of some variance, and gold above wrong (S12, S14, S16); False when not one is finite."""
        both = [*self._gold, *self._wrong]
        scores = self._trial.score(both)
        self._gold_scores, self._wrong_scores = scores[: len(self._gold)], scores[len(self._gold) :]
        finite = self._finite(both, scores)
        if not finite:
            return False
        facts = {"gold_mean": _mean(self._gold_scores), "wrong_mean": _mean(self._wrong_scores)}
        self.found.facts["scores"] = {**facts, **spread_of(finite)}
        self.found.looked_at.append("gold completions against those of other prompts: finite, in range, apart")
        self._degenerate(finite)
        return True

    def _finite(self, both: Sequence[Sample], scores: Scores) -> list[float]:
        """The finite ones of the first scores, which give the scale; there is a fault where there is none."""
        told = [(one.place, value) for one, value in zip(both, scores, strict=True) if value is not None]
        finite = [value for _, value in told if math.isfinite(value)]
        if not finite:
            trial = self._trial
            remedy = "see what it raises or returns" if told or trial.raised or trial.odd or trial.misfits else (
                "it returns None for all of them, which abstains: see whether it returns anything, and which columns "
                "and names it expects"
            )  # fmt: skip
            self.found.broken("no-score", "not one sample got a finite score", remedy)
            return []
        low = min(finite) if self._low is None else self._low
        high = max(finite) if self._high is None else self._high
        self._scale = (high - low) / 2 or 1.0
        outside = [f"{place}: {value:g}" for place, value in told if math.isfinite(value) and not low <= value <= high]
        if outside:
            self.found.broken("out-of-range", f"{len(outside)} scores lie outside {low:g} to {high:g}",
                              "clip or rescale where they are made", len(outside), outside)  # fmt: skip
        return finite

    def _degenerate(self, finite: Sequence[float]) -> None:
        if max(finite) == min(finite):
            self.found.broken("degenerate", f"everything scores {finite[0]:g}, gold and other answers",
                              "with equal rewards nothing is learned; check field names, format (--template) "
                              "and parsing")  # fmt: skip
            return
        pairs = finite_pairs(self._gold_scores, self._wrong_scores)
        better = sum(a > b for a, b in pairs)
        if pairs and better <= len(pairs) / 2:
            self.found.doubtful(
                "gold-not-above-wrong",
                f"gold scores above another prompt's completion in {better} of {len(pairs)} samples only",
                "see whether it looks at the answer, or only at form and length",
            )
        std = statistics.pstdev(finite)
        if self._trial.scorer.is_model and std and abs(statistics.fmean(finite)) > 5 * std:
            self.found.doubtful(
                "offset", f"scores lie at {statistics.fmean(finite):.4g}, standard deviation {std:.4g}",
                "an un-zeroed head bias, or un-centred training: subtract the mean",
            )  # fmt: skip

    def head(self, most: float) -> None:
        """Loss of the reward's head on labelled samples (S20)."""
        found = head_loss(self._trial, self._gold)
        if found is None:
            self.found.not_seen.append("loss of the head: the data holds neither chosen and rejected nor rewards")
            return
        self.found.facts["head_loss"] = {"kind": found.kind, "loss": found.value, "samples": found.count}
        self.found.looked_at.append(f"loss of the head on {found.count} {found.kind}")
        if found.value > most:
            self.found.doubtful("head-loss", found.says(), "train it further, or on data like yours: it does not tell "
                                "these answers apart")  # fmt: skip

    def determinism(self) -> None:
        """The same input twice, in another order, in other company and one at a time, gives the same score."""
        count = self._cases
        code = try_again(self.found, self._trial, self._gold[:count], self._wrong[:count], self._tolerance())
        if code in _BY_BATCH and not self._trial.scorer.is_model:
            self._go_on_alone(code)

    def _go_on_alone(self, code: str) -> None:
        """Score each text by itself from here on, so that the batch is told once and not taken for the text's doing."""
        self._trial.alone = True
        self._gold_scores, self._wrong_scores = self._trial.score(self._gold), self._trial.score(self._wrong)
        self.found.notes.append(f"after that each text was scored by itself: in a batch its score is another ({code})")
        finite = [one for one in (*self._gold_scores, *self._wrong_scores) if one is not None and math.isfinite(one)]
        self.apart = bool(finite) and max(finite) > min(finite)

    def _tolerance(self) -> float:
        return self._trial.scorer.tolerance * self._scale

    def canaries(self) -> None:
        """Texts that must not win against gold: a reward that lets them is gamed within a few hundred steps."""
        cases = [
            (one, score, name, text)
            for one, score in zip(self._gold, self._gold_scores, strict=True)
            for name, text in canaries(one).items()
        ]
        scores = self._trial.score([_completed(one, text, name) for one, _, name, text in cases])
        won: dict[str, list[str]] = {}
        tied: dict[str, int] = {}
        total: dict[str, int] = {}
        above = 1e-9 + self._tolerance()
        for (one, gold, name, text), score in zip(cases, scores, strict=True):
            if gold is None or score is None or not (math.isfinite(gold) and math.isfinite(score)):
                continue
            total[name] = total.get(name, 0) + 1
            if score > gold + above:
                won.setdefault(name, []).append(f"{one.place}: {score:g} against {gold:g}: {excerpt(text, 40)}")
            elif score == gold:
                tied[name] = tied.get(name, 0) + 1
        form = self._form_only(won, tied, total)
        for name, examples in won.items():
            share = len(examples) / total[name]
            self.found.add(
                Level.BROKEN if share > 0.5 else Level.DOUBTFUL, "canary-wins",
                f"{name} scores above gold in {len(examples)} of {total[name]} samples",
                "the policy will find this: make the reward refuse it", len(examples), examples, name,
            )  # fmt: skip
        for name, count in tied.items():
            known = form and name == _TYPO  # told already: it does not look at answers
            if name != _FORMAT and count > total[name] / 2 and not known and not self.found.has("degenerate"):
                self.found.doubtful("canary-ties", f"{name} scores as gold does in {count} of {total[name]} samples",
                                    "the reward cannot tell it from gold", count, about=name)  # fmt: skip
        self.found.facts["canaries"] = {
            name: {"cases": n, "won": len(won.get(name, ())), "tied": tied.get(name, 0)} for name, n in total.items()
        }
        if total:
            self.found.looked_at.append(f"canaries: {', '.join(total)}")
        if lost := {name for _, _, name, _ in cases} - set(total):
            self.found.not_seen.append(f"canaries: {', '.join(sorted(lost))}: not one was scored")
        if not self.found.has("degenerate") and not form:
            try_lists(
                self.found, self._trial, [*zip(self._gold, self._gold_scores, strict=True)], self._wrong_scores
            )  # fmt: skip

    def _form_only(self, won: Mapping[str, object], tied: Mapping[str, int], total: Mapping[str, int]) -> bool:
        """Every answer scores the same, and what has no form scores less: it rewards form, and that alone."""
        below = [name for name in total if name not in won and tied.get(name, 0) < total[name] / 2]
        if won or not self.found.has("degenerate") or not set(below) & {"empty", _FORMAT}:
            return False
        self.found.faults = [one for one in self.found.faults if one.code != "degenerate"]
        self.found.doubtful("form-only", "it tells form from no form, and no answer from another",
                            "right for a reward of the format beside one of the answer; else see whether it reads the "
                            "answer")  # fmt: skip
        return True

    def perturbed(
        self, classes: Mapping[str, Sequence[Perturbation]], max_std: float, min_rank: float, max_length: int
    ) -> None:
        """Changes that mean nothing, and lengths (S15)."""
        half = self._cases // 2
        known = [one for one in (*self._gold_scores, *self._wrong_scores) if one is not None]
        graded = not self._trial.scorer.is_model and len(set(known)) > len(known) / 2
        limits = Limits(max_std=max_std, min_rank=min_rank, scale=self._scale, graded=graded)
        gold = list(zip(self._gold, self._gold_scores, strict=True))
        wrong = list(zip(self._wrong, self._wrong_scores, strict=True))
        try_perturbations(self.found, self._trial, [*gold[:half], *wrong[:half]], classes, limits, self._templated)
        try_lengths(self.found, self._trial, gold, max_length, self._cases, limits)

    def growth(self) -> None:
        """The same samples again and again: does each call keep more memory (S29)?"""
        samples = self._gold[: self._cases]
        seconds = (self._trial.latencies[-1] if self._trial.latencies else 0.0) * len(samples) * (ROUNDS + 2)
        if seconds > _GROWTH_SHARE * (self._trial.deadline - time.monotonic()):
            self.found.not_seen.append("whether each call keeps more memory: there was no time to call it again and "
                                       "again (--timeout)")  # fmt: skip
            return
        grown = growth_of(lambda: self._trial.score(samples))
        self.found.looked_at.append(f"memory over {ROUNDS} calls with the same samples: tensors, objects, files, "
                                    "threads, the process")  # fmt: skip
        if grown:
            self.found.doubtful(
                "memory-grows", f"each call with the same {len(samples)} samples keeps more: {grown[0].says()}",
                "let go of what a call made: lists of past texts or scores, tensors that hold their graph, open files",
                len(grown), [one.says() for one in grown], grown[0].kind,
            )  # fmt: skip

    def note_timeout(self, seconds: float, rest: Sequence[str]) -> None:
        """Note that it did not come to an end."""
        self.found.cannot_tell("timeout", f"it did not finish within {seconds:.3g} s; the rest was not tried",
                               "see what it waits for; raise --timeout when it is only slow")  # fmt: skip
        self.found.not_seen.append(f"{', '.join(rest)}: the time was up (--timeout)")

    def calls(self, max_seconds: float) -> None:
        """Exceptions, values that are no finite numbers, graphs that are kept (S31), and latency."""
        trial = self._trial
        for misfit in trial.misfits.values():
            self.found.broken(misfit.code, str(misfit), misfit.remedy)
        for code, found, text, remedy in (
            ("raises", trial.raised, "inputs made it raise",
             "cut texts to its length before scoring: in training it ends the run" if trial.scorer.is_model
             else self._no_column() or "catch it and return a low score: in training it ends the run"),
            ("not-a-number", trial.odd, "results are not numbers", "return float, or None to abstain"),
            ("not-finite", trial.nonfinite, "inputs got NaN or an infinite score",
             "return a finite number for every input, an empty one too: one makes the advantages of its group NaN"),
        ):  # fmt: skip
            if found:
                examples = [f"{place}: {error}" for place, error in found.items()]
                self.found.broken(code, f"{len(found)} {text}", remedy, len(found), examples)
        if graph := trial.graph_kept():
            self.found.doubtful("keeps-graph", graph, KEEPS_GRAPH)
        if trial.scored and not trial.scorer.is_model:
            self.found.looked_at.append("whether scoring keeps an autograd graph")
        if trial.latencies:
            ordered = sorted(trial.latencies)
            median, worst = ordered[len(ordered) // 2], ordered[-1]
            self.found.facts["seconds_per_sample"] = {"p50": median, "max": worst}
            if median > max_seconds:
                self.found.doubtful("slow", f"{median:.3g} s for one sample (limit {max_seconds:g})",
                                    "every step waits for it: batch it, or run it in parallel")  # fmt: skip

    def _no_column(self) -> str:
        """The remedy where it asks for a column by key that the data lacks."""
        columns = columns_of(self._gold)
        asked = {found[1] for error in self._trial.raised.values() if (found := _KEY_ERROR.match(error))}
        lacking = sorted(asked - set(columns))
        if not lacking:
            return ""
        return (f"the data has no column {', '.join(lacking)} (it has {', '.join(columns)}): rename it here or there, "
                "or read it with .get()")  # fmt: skip


def spread_of(finite: Sequence[float]) -> dict[str, float]:
    """Least, greatest and standard deviation of scores."""
    return {"min": min(finite), "max": max(finite), "std": statistics.pstdev(finite)}


def _mean(scores: Scores) -> float | None:
    finite = [value for value in scores if value is not None and math.isfinite(value)]
    return statistics.fmean(finite) if finite else None


def _completed(sample: Sample, text: str, case: str) -> Sample:
    return replace(sample, completion=text, place=f"{sample.place}, {case}")


def _paired(gold: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """Each sample with the next one whose completion is another."""
    out = []
    for index, one in enumerate(gold):
        others = (gold[(index + step) % len(gold)] for step in range(1, len(gold)))
        other = next((other for other in others if other.completion != one.completion), None)
        if other is not None:
            out.append((one, other))
    return out


def _with_completion_of(one: Sample, other: Sample) -> Sample:
    return replace(one, completion=other.completion, place=f"{one.place}, another prompt's completion")


__all__ = ["CASES", "RewardJudge", "spread_of"]
