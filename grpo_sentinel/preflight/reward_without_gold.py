"""Try a reward whose data holds no response and no answer: everything that needs no gold, on completions made here.

Rewards of form, length or style read no answer, and GRPO needs prompts alone. Whether a right answer wins is not seen.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace

from grpo_sentinel.preflight.reward_cases import of_lengths
from grpo_sentinel.preflight.reward_judge import CASES, RewardJudge, spread_of
from grpo_sentinel.preflight.reward_made import canaries_for, made_for
from grpo_sentinel.preflight.reward_target import Sample, columns_of
from grpo_sentinel.preflight.reward_trial import Trial, finite_pairs, spearman
from grpo_sentinel.wording import counted

_GOLD_WORDS = frozenset({
    "answer", "answers", "correct", "expected", "gold", "golden", "key", "label", "labels", "output", "reference",
    "result", "solution", "target", "truth", "want", "wanted",
})  # fmt: skip
_LEAST_STD = 0.05  # on the scale -1 to 1: by less than this length does not pay
_GOES_ON = 0.25  # of the rise in the longer half of the lengths: what pays for length rises there, too


class JudgeWithoutGold(RewardJudge):
    """The same tries on made completions; those that compare with gold are left out and said."""

    def __init__(
        self, trial: Trial, prompts: Sequence[Sample], low: float | None, high: float | None, cases: int = CASES
    ) -> None:  # fmt: skip
        made = made_for(prompts)
        firsts = [texts[index % len(texts)] for index, texts in enumerate(made)]
        super().__init__(trial, firsts, low, high, cases)
        self._wrong = [texts[(index + 1) % len(texts)] for index, texts in enumerate(made)]
        self._made, self._prompts = made, prompts
        self.found.not_seen.append(_needs_gold(prompts))

    def scores(self) -> bool:
        """Finite and in range, for every kind of completion; False when not one is finite."""
        texts = [one for texts in self._made for one in texts]
        scores = self._trial.score(texts)
        finite = self._finite(texts, scores)
        if not finite:
            return False
        self.found.facts["scores"] = spread_of(finite)
        self.found.looked_at.append(f"{counted(len(texts), 'made completion')} of {len(self._made)} prompts, short, "
                                    "long, in a form, of other prompts: finite, in range")  # fmt: skip
        if max(finite) == min(finite):
            self.found.not_seen.append(f"whether scores tell completions apart: all that were made score {finite[0]:g} "
                                       "(--response names a field of whole responses)")  # fmt: skip
        return True

    def canaries(self) -> None:
        """An empty text and one word again and again, which must not score above everything else."""
        canaries = [canaries_for(one) for one in self._prompts]
        rows = [[*texts, *own.values()] for texts, own in zip(self._made, canaries, strict=True)]
        scores = iter(self._trial.score([one for row in rows for one in row]))
        won: dict[str, list[str]] = {}
        total: dict[str, int] = {}
        for texts, own in zip(self._made, canaries, strict=True):
            others = [score for score in [next(scores) for _ in texts] if score is not None and math.isfinite(score)]
            for name, one in own.items():
                score = next(scores)
                if score is None or not math.isfinite(score) or not others:
                    continue
                total[name] = total.get(name, 0) + 1
                if score > max(others) + self._tolerance() + 1e-9:
                    won.setdefault(name, []).append(f"{one.place}: {score:g}, the others at most {max(others):g}")
        for name, examples in won.items():
            if len(examples) > total[name] / 2:
                self.found.doubtful(
                    "canary-wins", f"{name} scores above every other completion in {len(examples)} of {total[name]} "
                    "samples", "the policy will find this: make the reward refuse it, or see that another reward "
                    "beside it costs more", len(examples), examples, name,
                )  # fmt: skip
        self.found.facts["canaries"] = {name: {"cases": n, "won": len(won.get(name, ()))} for name, n in total.items()}
        if total:
            self.found.looked_at.append(f"canaries: {', '.join(total)}, against the other completions of their prompt")

    def lengths(self, limit: int) -> None:
        """One text with more and more neutral words before it: does length alone raise the score?"""
        source = next((one for one in self._gold if one.completion.strip()), self._gold[0])
        texts = of_lengths(source.completion, limit, self._cases)
        scores = self._trial.score([replace(source, completion=text, place=f"{source.place}, lengths")
                                    for text in texts])  # fmt: skip
        pairs = finite_pairs([float(len(text)) for text in texts], scores)
        if len(pairs) < 2:
            self.found.not_seen.append("lengths: fewer than two were scored")
            return
        std = statistics.pstdev([score / self._scale for _, score in pairs])
        rank = spearman(pairs)
        first, middle, last = (pairs[at][1] for at in (0, len(pairs) // 2, -1))
        goes_on = last - middle > _GOES_ON * (last - first)  # a share of letters or words comes to an end
        self.found.facts["lengths"] = {"cases": len(pairs), "std": std, "rank_correlation": rank}
        self.found.looked_at.append(f"lengths: {len(pairs)} up to {int(limit * 1.1):,} characters")
        if rank is not None and rank > 0.9 and std > _LEAST_STD and goes_on:
            self.found.doubtful(
                "length", f"neutral words alone raise the score with length (rank correlation {rank:.2f})",
                "normalise by length, or cap it: the policy will write on and on",
            )  # fmt: skip

    def _no_column(self) -> str:
        wants = getattr(self._trial.scorer, "wants_answer", "")
        if not wants:
            return super()._no_column()
        return f"it takes an answer ({wants}), and the data has none{_suggested(self._gold)}"


def _needs_gold(prompts: Sequence[Sample]) -> str:
    """What cannot be seen without a response or an answer, and which column may be one."""
    return ("whether gold wins over wrong answers, typos, a wrong format, lists of answers and other wording: the data "
            f"has no response and no answer{_suggested(prompts)}")  # fmt: skip


def _suggested(samples: Sequence[Sample]) -> str:
    columns = [one for one in columns_of(samples) if _GOLD_WORDS & set(re.split(r"[\W_]+", one.lower()))]
    return f"; {' or '.join(columns)} may be it (check reward --answer {columns[0]})" if columns else ""


__all__ = ["JudgeWithoutGold"]
