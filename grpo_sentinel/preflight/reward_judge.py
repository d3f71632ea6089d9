"""Try a reward on gold completions, wrong ones, canaries and perturbations, and judge what it says."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import Fault, excerpt
from grpo_sentinel.preflight.reward_cases import Perturbation, canaries, of_lengths
from grpo_sentinel.preflight.reward_head import head_loss
from grpo_sentinel.preflight.reward_target import Sample
from grpo_sentinel.preflight.reward_trial import Trial, finite_pairs, spearman

CASES = 20  # of each class (S15)
_MODEL_TOLERANCE = 1e-3  # of the range: padding and batch size change the order of float32 sums
_FORMAT = "wrong format"  # may tie with gold: a lenient reward is no fault

Scores = list[float | None]


class RewardJudge:
    """Runs the tries in order; each notes what it found. All scores of one try are one call of `Trial.score`."""

    def __init__(
        self, trial: Trial, gold: Sequence[Sample], low: float | None, high: float | None, cases: int = CASES
    ) -> None:
        self._trial, self._gold, self._cases = trial, list(gold), cases
        self._low, self._high = low, high
        self._wrong = [_with_completion_of(one, other) for one, other in _paired(self._gold)]
        self._gold_scores: Scores = []
        self._wrong_scores: Scores = []
        self._scale = 1.0  # half the range: a difference divided by it is on the scale [-1, 1]
        self.faults: list[Fault] = []
        self.facts: dict[str, object] = {}
        self.looked_at: list[str] = []
        self.not_seen: list[str] = []

    def _fault(
        self,
        level: Level,
        code: str,
        message: str,
        remedy: str,
        *,
        count: int = 1,
        subject: str = "",
        examples: Sequence[str] = (),
    ) -> None:
        self.faults.append(
            Fault(
                level=level,
                code=code,
                where=self._trial.scorer.name,
                message=message,
                remedy=remedy,
                count=count,
                subject=subject,
                examples=tuple(examples[:3]),
            )
        )

    def scores(self) -> None:
        """Finite, in range, of some variance, and gold above wrong (S12, S14, S16)."""
        both = [*self._gold, *self._wrong]
        scores = self._trial.score(both)
        self._gold_scores, self._wrong_scores = scores[: len(self._gold)], scores[len(self._gold) :]
        bad = [
            f"{one.place}: {value}"
            for one, value in zip(both, scores, strict=True)
            if value is not None and not math.isfinite(value)
        ]
        if bad:
            self._fault(
                Level.BROKEN,
                "not-finite",
                f"{len(bad)} scores are NaN or infinite",
                "return a finite number for every input: one makes the advantages of its group NaN",
                count=len(bad),
                examples=bad,
            )
        finite = [value for value in scores if value is not None and math.isfinite(value)]
        if not finite:
            self._fault(Level.BROKEN, "no-score", "not one sample got a finite score", "see what it raises or returns")
            return
        low = min(finite) if self._low is None else self._low
        high = max(finite) if self._high is None else self._high
        self._scale = (high - low) / 2 or 1.0
        outside = [
            f"{one.place}: {value:g}"
            for one, value in zip(both, scores, strict=True)
            if value is not None and math.isfinite(value) and not low <= value <= high
        ]
        if outside:
            self._fault(
                Level.BROKEN,
                "out-of-range",
                f"{len(outside)} scores lie outside {low:g} to {high:g}",
                "clip or rescale where they are made",
                count=len(outside),
                examples=outside,
            )
        self.facts["scores"] = {
            "gold_mean": _mean(self._gold_scores),
            "wrong_mean": _mean(self._wrong_scores),
            "min": min(finite),
            "max": max(finite),
            "std": statistics.pstdev(finite),
        }
        self.looked_at.append("gold completions against those of other prompts: finite, in range, apart")
        self._degenerate(finite)

    def _degenerate(self, finite: Sequence[float]) -> None:
        if max(finite) == min(finite):
            self._fault(
                Level.BROKEN,
                "degenerate",
                f"everything scores {finite[0]:g}, gold and other answers",
                "with equal rewards nothing is learned; check field names, format (--template) and parsing",
            )
            return
        pairs = finite_pairs(self._gold_scores, self._wrong_scores)
        better = sum(a > b for a, b in pairs)
        if pairs and better <= len(pairs) / 2:
            self._fault(
                Level.DOUBTFUL,
                "gold-not-above-wrong",
                f"gold scores above another prompt's completion in {better} of {len(pairs)} samples only",
                "see whether it looks at the answer, or only at form and length",
            )
        std = statistics.pstdev(finite)
        if self._trial.scorer.is_model and std and abs(statistics.fmean(finite)) > 5 * std:
            self._fault(
                Level.DOUBTFUL,
                "offset",
                f"scores lie at {statistics.fmean(finite):.4g}, standard deviation {std:.4g}",
                "an un-zeroed head bias, or un-centred training: subtract the mean",
            )

    def head(self, most: float) -> None:
        """Loss of the reward's head on labelled samples (S20)."""
        found = head_loss(self._trial, self._gold)
        if found is None:
            self.not_seen.append("loss of the head: the data holds neither chosen and rejected nor rewards")
            return
        self.facts["head_loss"] = {"kind": found.kind, "loss": found.value, "samples": found.count}
        self.looked_at.append(f"loss of the head on {found.count} {found.kind}")
        if found.value > most:
            self._fault(
                Level.DOUBTFUL,
                "head-loss",
                found.says(),
                "train it further, or on data like yours: it does not tell these answers apart",
            )

    def determinism(self) -> None:
        """The same input twice, in another order, and one at a time, gives the same score."""
        samples = self._gold[: self._cases]
        first = self._trial.score(samples)
        tries: tuple[tuple[str, str, Callable[[], Scores]], ...] = (
            ("same input twice", "nondeterministic", lambda: self._trial.score(samples)),
            ("another order", "order", lambda: self._trial.score(samples[::-1])[::-1]),
            ("one at a time, without padding", "batch-size", lambda: [self._trial.score([one])[0] for one in samples]),
        )
        for name, code, again in tries:
            scores = again()
            limit = (
                _MODEL_TOLERANCE * self._scale if self._trial.scorer.is_model and code != "nondeterministic" else 1e-9
            )
            moved = [
                f"{one.place}: {a} then {b}"
                for one, a, b in zip(samples, first, scores, strict=True)
                if (a is None) != (b is None) or (a is not None and b is not None and not _same(a, b, limit))
            ]
            if moved:
                remedy = (
                    "fix the seed, switch dropout off, and keep no state between calls"
                    if code != "batch-size"
                    else "check padding side, padding token and attention mask; score each text by itself"
                )
                self._fault(
                    Level.BROKEN,
                    code,
                    f"{name}: {len(moved)} of {len(samples)} scores are others",
                    remedy,
                    count=len(moved),
                    examples=moved,
                )
                return  # what is not deterministic differs in every further try too
        self.looked_at.append("determinism: same input twice, another order, one at a time")

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
        for (one, gold, name, text), score in zip(cases, scores, strict=True):
            if gold is None or score is None or not (math.isfinite(gold) and math.isfinite(score)):
                continue
            total[name] = total.get(name, 0) + 1
            if score > gold + 1e-9 + (_MODEL_TOLERANCE * self._scale if self._trial.scorer.is_model else 0):
                won.setdefault(name, []).append(f"{one.place}: {score:g} against {gold:g}: {excerpt(text, 40)}")
            elif score == gold:
                tied[name] = tied.get(name, 0) + 1
        for name, examples in won.items():
            share = len(examples) / total[name]
            self._fault(
                Level.BROKEN if share > 0.5 else Level.DOUBTFUL,
                "canary-wins",
                f"{name} scores above gold in {len(examples)} of {total[name]} samples",
                "the policy will find this: make the reward refuse it",
                count=len(examples),
                subject=name,
                examples=examples,
            )
        degenerate = any(fault.code == "degenerate" for fault in self.faults)
        for name, count in tied.items():
            if name != _FORMAT and count > total[name] / 2 and not degenerate:
                self._fault(
                    Level.DOUBTFUL,
                    "canary-ties",
                    f"{name} scores as gold does in {count} of {total[name]} samples",
                    "the reward cannot tell it from gold",
                    count=count,
                    subject=name,
                )
        self.facts["canaries"] = {
            name: {"cases": n, "won": len(won.get(name, ())), "tied": tied.get(name, 0)} for name, n in total.items()
        }
        self.looked_at.append(f"canaries: {', '.join(total)}")

    def perturbed(self, classes: Mapping[str, Sequence[Perturbation]], max_std: float, min_rank: float) -> None:
        """Perturbations that change nothing: the order of scores holds, and none moves far (S15)."""
        half = self._cases // 2
        base = [*self._gold[:half], *self._wrong[:half]]
        before = [*self._gold_scores[:half], *self._wrong_scores[:half]]
        facts: dict[str, object] = {}
        for name, ways in classes.items():
            after = self._trial.score(
                [_completed(one, ways[index % len(ways)](one.completion), name) for index, one in enumerate(base)]
            )
            pairs = finite_pairs(before, after)
            rank = spearman(pairs)
            std = statistics.pstdev([(b - a) / self._scale for a, b in pairs]) if len(pairs) > 1 else None
            facts[name] = {"cases": len(pairs), "rank_correlation": rank, "std_of_change": std}
            told = f"rank correlation {rank:.2f} " if rank is not None else ""
            flat = rank is None and len({a for a, _ in pairs}) > 1  # all the same afterwards
            if flat or (rank is not None and rank < min_rank) or (std is not None and std > max_std):
                self._fault(
                    Level.DOUBTFUL,
                    "not-robust",
                    f"{name}: {told}over {len(pairs)} cases, scores move by {std or 0:.2f} "
                    f"(std on the scale -1 to 1; limits {min_rank:g} and {max_std:g})",
                    "strip such ends before parsing or scoring; train the model on such variants",
                    subject=name,
                )
        self.facts["perturbations"] = facts
        self.looked_at.append(f"perturbations: {', '.join(classes)}")

    def lengths(self, limit: int, max_std: float) -> None:
        """Scores over lengths up to beyond the limit, and whether length alone decides (S15)."""
        source = max(zip(self._gold, self._gold_scores, strict=True), key=lambda pair: _or_low(pair[1]))[0]
        texts = of_lengths(source.completion, limit, self._cases)
        scores = self._trial.score([_completed(source, text, "lengths") for text in texts])
        pairs = finite_pairs([float(len(text)) for text in texts], scores)
        std = statistics.pstdev([b / self._scale for _, b in pairs]) if len(pairs) > 1 else 0.0
        rank = spearman(pairs) if pairs else None
        own = finite_pairs([float(len(one.completion)) for one in self._gold], self._gold_scores)
        coupled = spearman(own) if len(own) >= 10 else None
        self.facts["lengths"] = {
            "cases": len(pairs),
            "std": std,
            "rank_correlation": rank,
            "rank_correlation_in_data": coupled,
        }
        if rank is not None and rank > 0.9 and std > 0.05:
            self._fault(
                Level.BROKEN,
                "length",
                f"neutral words alone raise the score with length (rank correlation {rank:.2f})",
                "normalise by length, or cap it: the policy will write on and on",
            )
        elif std > max_std:
            self._fault(
                Level.DOUBTFUL,
                "not-robust",
                f"lengths: scores of one text move by {std:.2f} over {len(pairs)} lengths (limit {max_std:g})",
                "see what is cut at the limit",
                subject="lengths",
            )
        if coupled is not None and abs(coupled) > 0.8:
            self._fault(
                Level.DOUBTFUL,
                "length-coupling",
                f"in the data, score follows length (rank correlation {coupled:.2f})",
                "see whether long answers are better here, or only longer",
            )
        self.looked_at.append(f"lengths up to {int(limit * 1.1):,} characters, and the data's own")

    def note_timeout(self, seconds: float) -> None:
        """Note that it did not come to an end."""
        self._fault(
            Level.CANNOT_TELL,
            "timeout",
            f"it did not finish within {seconds:.3g} s; the rest was not tried",
            "see what it waits for; raise --timeout when it is only slow",
        )

    def calls(self, max_seconds: float) -> None:
        """Exceptions, values that are no numbers, and latency."""
        trial = self._trial
        for code, found, text, remedy in (
            (
                "raises",
                trial.raised,
                "inputs made it raise",
                "catch it and return a low score: in training it ends the run",
            ),
            ("not-a-number", trial.odd, "results are not numbers", "return float, or None to abstain"),
        ):
            if found:
                examples = [f"{place}: {error}" for place, error in found.items()]
                self._fault(Level.BROKEN, code, f"{len(found)} {text}", remedy, count=len(found), examples=examples)
        if trial.latencies:
            ordered = sorted(trial.latencies)
            median, worst = ordered[len(ordered) // 2], ordered[-1]
            self.facts["seconds_per_sample"] = {"p50": median, "max": worst}
            if median > max_seconds:
                self._fault(
                    Level.DOUBTFUL,
                    "slow",
                    f"{median:.3g} s for one sample (limit {max_seconds:g})",
                    "every step waits for it: batch it, or run it in parallel",
                )


def _same(a: float, b: float, limit: float) -> bool:
    return a == b or abs(a - b) <= limit or (math.isnan(a) and math.isnan(b))


def _mean(scores: Scores) -> float | None:
    finite = [value for value in scores if value is not None and math.isfinite(value)]
    return statistics.fmean(finite) if finite else None


def _or_low(score: float | None) -> float:
    return score if score is not None and math.isfinite(score) else -math.inf


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


__all__ = ["CASES", "RewardJudge"]
