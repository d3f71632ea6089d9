"""Does a reward pay for naming many answers? Gold stands among others, in gold's own form, neither first nor last.

A grader that takes one answer, the first or the last, finds a wrong one. One that asks whether the answer stands
anywhere in the text, or in any of its boxes, pays in full for a list, and the policy learns to write lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from grpo_sentinel.preflight.findings import Findings
from grpo_sentinel.preflight.report import excerpt
from grpo_sentinel.preflight.reward_target import Sample
from grpo_sentinel.preflight.reward_trial import Trial, finite_pairs

NAME = "many answers"
_MOST_NUMBERS = 200
_MOST_OTHERS = 24
_LONGEST = 60  # characters of an answer that can stand in a list; longer ones are solutions, tests or code
_SHARE = 0.2  # of the way from wrong to gold that may be missing: a format or length counts a little, too
_LETTERS = "ABCDE"
_NUMBER = re.compile(r"\d{1,6}")
_FORMS = (r"\\boxed\{%s\}", r"<(\w+)>\s*%s\s*</\1>", r"####[ \t]*%s", r"\*\*%s\*\*", r"\$%s\$", r"\(%s\)", r"\[%s\]")
"""What an answer stands in; the first that is found around it is repeated for each answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    """One completion that lists answers, beside the scores of its sample."""

    sample: Sample
    gold: float
    wrong: float


def try_lists(
    found: Findings, trial: Trial, gold: Sequence[tuple[Sample, float | None]], wrong: Sequence[float | None]
) -> None:
    """Score lists of answers where the answer matters: where gold scores above a wrong one."""
    lists = list(_lists(gold, wrong))
    scores = trial.score([one.sample for one in lists])
    pairs = [(one, score) for one, score in zip(lists, scores, strict=True) if finite_pairs([score], [score])]
    if not pairs:
        found.not_seen.append(f"canaries: {NAME}: needs short answers that differ, and gold that scores above another")
        return
    margin = 0.0 if trial.scorer.is_model else _SHARE
    won = [(one, score or 0.0) for one, score in pairs if (score or 0.0) > one.gold - margin * (one.gold - one.wrong)]
    places = {one.sample.place for one, _ in pairs}
    paid = {one.sample.place for one, _ in won}
    found.facts["lists"] = {"cases": len(places), "won": len(paid)}
    found.looked_at.append(f"canaries: {NAME} in one text, gold among them ({len(places)} samples)")
    if len(paid) > len(places) / 2:
        found.doubtful(
            "canary-wins", f"{NAME}: a list that holds the right one scores as gold does in {len(paid)} of "
            f"{len(places)} samples", "take one answer, the last that is given, or refuse a text that gives several; "
            "the policy will list them all", len(paid),
            [f"{one.sample.place}: {score:g} against {one.gold:g}: {excerpt(one.sample.completion, 40)}"
             for one, score in won], NAME,
        )  # fmt: skip


def _lists(gold: Sequence[tuple[Sample, float | None]], wrong: Sequence[float | None]) -> Iterator[_List]:
    answers = list(dict.fromkeys(final_of(one.answer) for one, _ in gold))
    for (one, right), other in zip(gold, wrong, strict=False):  # there is none where all completions are the same
        if right is None or other is None or not finite_pairs([right], [other]) or right <= other:
            continue
        for text in listings(one, answers):
            yield _List(sample=replace(one, completion=text, place=f"{one.place}, {NAME}"), gold=right, wrong=other)


def listings(sample: Sample, answers: Sequence[str]) -> list[str]:
    """Gold's completion with a list in place of its answer: of plausible answers, and of those of other samples.

    Each in two ways: the form repeated for each answer, and one form around all of them.
    """
    answer = final_of(sample.answer)
    if not answer or len(answer) > _LONGEST or "\n" in answer:
        return []
    begin, end, form = _form(sample.completion, answer)
    if end == begin:
        return []
    before = re.sub(_whole(answer), _another(answer, answers), sample.completion[:begin])
    out = []
    for names in (_plausible(answer), _among(answer, answers)):
        if len(names) > 2:
            out.append(before + " ".join(form.replace("\0", one) for one in names) + sample.completion[end:])
            out.append(before + form.replace("\0", ", ".join(names)) + sample.completion[end:])
    return list(dict.fromkeys(out))


def final_of(answer: str) -> str:
    """The answer itself, of a field that holds a whole solution (GSM8K, MATH)."""
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", answer)
    return (answer.rpartition("####")[2] if "####" in answer else boxes[-1] if boxes else answer).strip()


def _form(text: str, answer: str) -> tuple[int, int, str]:
    """Where the answer stands last in the text, with what is around it, and that with a NUL for the answer."""
    for pattern in _FORMS:
        found = list(re.finditer(pattern % re.escape(answer), text))
        if found:
            return found[-1].start(), found[-1].end(), _with_nul(found[-1][0], answer)
    bare = list(re.finditer(_whole(answer), text))
    return (bare[-1].start(), bare[-1].end(), "\0") if bare else (0, 0, "")


def _with_nul(unit: str, answer: str) -> str:
    at = unit.rfind(answer)
    return unit[:at] + "\0" + unit[at + len(answer) :]


def _whole(answer: str) -> str:
    return rf"(?<!\w){re.escape(answer)}(?!\w)"


def _another(answer: str, answers: Sequence[str]) -> str:
    other = next((one for one in answers if one and one != answer and len(one) <= _LONGEST), "")
    return other.replace("\\", r"\\")


def _plausible(answer: str) -> list[str]:
    """Numbers from 1 to 200, or the letters of options: what a policy can list without knowing the answer."""
    if _NUMBER.fullmatch(answer):
        return _inside(answer, [str(one) for one in range(1, _MOST_NUMBERS + 1)])
    return _inside(answer, list(_LETTERS)) if answer in _LETTERS else []


def _among(answer: str, answers: Sequence[str]) -> list[str]:
    return _inside(answer, [one for one in answers if one and len(one) <= _LONGEST and "\n" not in one][:_MOST_OTHERS])


def _inside(answer: str, names: list[str]) -> list[str]:
    """The names with the answer among them, neither first nor last."""
    rest = [one for one in names if one != answer]
    at = len(rest) // 2
    return [*rest[:at], answer, *rest[at:]]


__all__ = ["NAME", "final_of", "listings", "try_lists"]
