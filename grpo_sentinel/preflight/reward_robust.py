"""Is a reward moved by changes that mean nothing (S15)? Three classes, each judged by what it would do to training.

appended special tokens and symbols   nothing may be paid for them; that a strict grader refuses them is a note
paraphrases                           the order of scores holds (Spearman at least 0.7): the answer is the same
lengths                               length alone neither pays nor, once it is long, makes the score jump

A reward model has no notion of form, so for one a fall counts as much as a gain in every class.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from grpo_sentinel.preflight.findings import Findings
from grpo_sentinel.preflight.report import excerpt
from grpo_sentinel.preflight.reward_cases import EDITS, Perturbation, is_prose, of_lengths
from grpo_sentinel.preflight.reward_target import Sample
from grpo_sentinel.preflight.reward_trial import Trial, finite_pairs, spearman

_GAIN = 0.02  # on the scale -1 to 1: what a function pays for an edit that means nothing
_GRADED_GAIN = 0.05  # of one that grades finely, as a judge does: its scores move a little with any change
_SOLUTION_WORDS = 8
_STRICT = "a grader of exact answers does so; none of them is paid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Those of S15; `scale` is half the range of scores, so that a difference divided by it is on -1 to 1."""

    max_std: float
    min_rank: float
    scale: float
    graded: bool = False  # a function whose scores are nearly all different


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One sample, perturbed in one way."""

    sample: Sample  # with the perturbed completion
    way: int
    before: float | None
    judged: bool  # a fall counts: the meaning is the same
    after: float | None = None


def try_perturbations(
    found: Findings, trial: Trial, base: Sequence[tuple[Sample, float | None]],
    classes: Mapping[str, Sequence[Perturbation]], limits: Limits, templated: frozenset[str],
) -> None:  # fmt: skip
    """Perturb and score; `templated` are completions that were written from an answer: they have no wording."""
    facts: dict[str, object] = {}
    seen: list[str] = []
    for name, ways in classes.items():
        cases = _scored(trial, _cases(trial, base, name, ways, templated), name)
        if not cases:
            found.not_seen.append(f"perturbations, {name}: not one case was scored")
            continue
        seen.append(f"{name} ({len(cases)})")
        facts[name] = _judge(found, trial, name, ways, cases, limits)
        if name == "paraphrase" and not any(case.judged for case in cases):
            solutions = any(len(case.sample.answer.split()) > _SOLUTION_WORDS for case in cases)
            what = "solutions of the data, which may be wanted word for word" if solutions else "bare answers or code"
            found.not_seen.append("whether other words for the same answer keep the score: these completions are "
                                  f"{what} (--response names a field of whole responses)")  # fmt: skip
    found.facts["perturbations"] = facts
    if seen:
        found.looked_at.append(f"perturbations: {', '.join(seen)}")


def _cases(
    trial: Trial, base: Sequence[tuple[Sample, float | None]], name: str, ways: Sequence[Perturbation],
    templated: frozenset[str],
) -> list[_Case]:  # fmt: skip
    out = []
    for index, (one, before) in enumerate(base):
        text = ways[index % len(ways)](one.completion)
        lost = bool(one.answer) and one.answer in one.completion and one.answer not in text
        if text == one.completion or (name == "paraphrase" and lost):
            continue
        prose = one.completion not in templated and is_prose(one)
        judged = trial.scorer.is_model or (name not in EDITS and (name != "paraphrase" or prose))
        sample = replace(one, completion=text, place=f"{one.place}, {name}")
        out.append(_Case(sample=sample, way=index % len(ways), before=before, judged=judged))
    return out


def _scored(trial: Trial, cases: Sequence[_Case], name: str) -> list[_Case]:
    scores = trial.score([one.sample for one in cases])
    both = [replace(one, after=score) for one, score in zip(cases, scores, strict=True)]
    return [one for one in both if finite_pairs([one.before], [one.after])]


def _judge(
    found: Findings, trial: Trial, name: str, ways: Sequence[Perturbation], cases: Sequence[_Case], limits: Limits
) -> dict[str, object]:
    won = _won(trial, cases, len(ways), limits)
    fell = [one for one in cases if _moved(one, limits) < -_GAIN]
    judged = [(one.before or 0.0, one.after or 0.0) for one in cases if one.judged]
    rank = spearman(judged)
    std = statistics.pstdev([(b - a) / limits.scale for a, b in judged]) if len(judged) > 1 else None
    if won:
        add = found.broken if len(won) > len(cases) / 2 else found.doubtful
        add(
            "perturbation-wins", f"{name}: {len(won)} of {len(cases)} scores rise by it, at most by "
            f"{max(_moved(one, limits) for one in won):.2f} (on the scale -1 to 1)",
            "the policy will write this: make the reward refuse or strip it before scoring", len(won),
            [f"{one.sample.place}: {one.before:g} then {one.after:g}: …{excerpt(one.sample.completion[-30:], 40)}"
             for one in won], name,
        )  # fmt: skip
    flat = rank is None and len({a for a, _ in judged}) > 1  # all the same afterwards
    if flat or (rank is not None and rank < limits.min_rank) or (std is not None and std > limits.max_std):
        told = f"rank correlation {rank:.2f} " if rank is not None else ""
        found.doubtful(
            "not-robust", f"{name}: {told}over {len(judged)} cases, scores move by {std or 0:.2f} "
            f"(std on the scale -1 to 1; limits {limits.min_rank:g} and {limits.max_std:g})",
            "read the answer and not its wording; strip such ends before scoring; train the model on such variants",
            about=name,
        )  # fmt: skip
    elif fell and not won:
        found.notes.append(f"strict: {len(fell)} of {len(cases)} scores fall with {name}; {_STRICT}")
    return {"cases": len(cases), "won": len(won), "fell": len(fell), "judged": len(judged), "rank_correlation": rank,
            "std_of_change": std}  # fmt: skip


def _won(trial: Trial, cases: Sequence[_Case], ways: int, limits: Limits) -> list[_Case]:
    """What rises: any case; where scores grade finely every case of one way; of a model most, by more than it may."""
    model = trial.scorer.is_model
    least = limits.max_std if model else _GRADED_GAIN if limits.graded else _GAIN
    share = 0.5 if model else 1.0 - 1e-9 if limits.graded else 0.0
    out: list[_Case] = []
    for way in range(ways):
        of_way = [one for one in cases if one.way == way]
        rose = [one for one in of_way if _moved(one, limits) > least]
        out += rose if len(rose) > share * len(of_way) else []
    return out


def _moved(one: _Case, limits: Limits) -> float:
    return ((one.after or 0.0) - (one.before or 0.0)) / limits.scale


def try_lengths(
    found: Findings, trial: Trial, gold: Sequence[tuple[Sample, float | None]], limit: int, count: int, limits: Limits
) -> None:
    """Score one text over lengths up to beyond the limit (characters), and see whether length alone decides."""
    source = max(gold, key=lambda pair: _or_low(pair[1]))[0]
    texts = of_lengths(source.completion, limit, count)
    scores = trial.score([replace(source, completion=text, place=f"{source.place}, lengths") for text in texts])
    pairs = finite_pairs([float(len(text)) for text in texts], scores)
    if len(pairs) < 2:
        found.not_seen.append("lengths: fewer than two were scored")
        return
    std = statistics.pstdev([b / limits.scale for _, b in pairs])
    longer = [b / limits.scale for a, b in pairs if a > len(source.completion)]
    rank = spearman(pairs)
    own = finite_pairs([float(len(one.completion)) for one, _ in gold], [score for _, score in gold])
    coupled = spearman(own) if len(own) >= 10 else None
    found.facts["lengths"] = {"cases": len(pairs), "std": std, "rank_correlation": rank,
                              "rank_correlation_in_data": coupled}  # fmt: skip
    found.looked_at.append(f"lengths: {len(pairs)} up to {int(limit * 1.1):,} characters, and the data's own")
    jumps = std if trial.scorer.is_model else statistics.pstdev(longer) if longer else 0.0
    if rank is not None and rank > 0.9 and std > 0.05:
        found.broken(
            "length", f"neutral words alone raise the score with length (rank correlation {rank:.2f})",
            "normalise by length, or cap it: the policy will write on and on",
        )  # fmt: skip
    elif jumps > limits.max_std:
        found.doubtful(
            "not-robust",
            f"lengths: scores of one text move by {jumps:.2f} over {len(pairs)} lengths (limit {limits.max_std:g})",
            "see what is cut at the limit", about="lengths",
        )  # fmt: skip
    elif longer and max(longer) < pairs[0][1] / limits.scale - _GAIN:
        found.notes.append(f"strict: neutral words before the answer lower its score; {_STRICT}")
    if coupled is not None and abs(coupled) > 0.8:
        found.doubtful(
            "length-coupling", f"in the data, score follows length (rank correlation {coupled:.2f})",
            "see whether long answers are better here, or only longer",
        )  # fmt: skip


def _or_low(score: float | None) -> float:
    return score if finite_pairs([score], [score]) and score is not None else float("-inf")


__all__ = ["Limits", "try_lengths", "try_perturbations"]
