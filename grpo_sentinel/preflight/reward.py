"""`check reward`: is this reward sane on real samples? State, scores, determinism, canaries, robustness, length.

Scores are judged on the scale [-1, 1] of their range (S12, S15): the one given, else that of gold and wrong answers.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_shapes import Fields
from grpo_sentinel.preflight.data_sources import expand, read_rows
from grpo_sentinel.preflight.prompts import known_fields, sample_of
from grpo_sentinel.preflight.report import CheckReport
from grpo_sentinel.preflight.reward_cases import PERTURBATIONS, Perturbation
from grpo_sentinel.preflight.reward_head import MOST
from grpo_sentinel.preflight.reward_judge import CASES, RewardJudge
from grpo_sentinel.preflight.reward_made import made_for
from grpo_sentinel.preflight.reward_model import ModelScorer, load_model
from grpo_sentinel.preflight.reward_target import FunctionScorer, Sample, Scorer, load_object
from grpo_sentinel.preflight.reward_trial import OutOfTime, Trial
from grpo_sentinel.preflight.reward_without_gold import JudgeWithoutGold
from grpo_sentinel.preflight.telling import is_heard, tell
from grpo_sentinel.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOptions:
    """What the caller asks for; the limits are those of S12 to S15 on the scale [-1, 1]."""

    fields: Fields = field(default_factory=Fields)
    samples: int = 20
    template: str = "{answer}"  # how a gold completion is written from the answer
    low: float | None = None
    high: float | None = None
    max_std: float = 0.5
    min_rank_correlation: float = 0.7
    max_length: int = 2048  # characters: lengths are tried up to 1.1 times this
    max_head_bias: float = 0.5
    max_head_loss: float = MOST
    max_seconds_per_sample: float = 1.0
    timeout_seconds: float = 45.0
    perturbations: str = ""  # MODULE with PERTURBATIONS


def check_reward(target: str, data: Sequence[str], options: RewardOptions | None = None) -> CheckReport:
    """Check one reward function or model on samples of a data set. Raises `SentinelError`."""
    options = options or RewardOptions()
    began = time.monotonic()
    gold = _samples(expand(list(data)), options)
    perturbations = _perturbations(options.perturbations)
    scorer = load_target(target)
    trial = Trial(scorer, began + options.timeout_seconds)
    wanted = len(gold)
    has_gold = bool(gold[0].completion)
    gold = gold[: _affordable(trial, gold if has_gold else [texts[0] for texts in made_for(gold)])]
    cases = min(CASES, len(gold)) if len(gold) < wanted else CASES
    judge = (
        RewardJudge(trial, gold, options.low, options.high, cases, options.template) if has_gold
        else JudgeWithoutGold(trial, gold, options.low, options.high, cases)
    )  # fmt: skip
    found = judge.found
    _run(judge, _tries(judge, scorer, perturbations, options), options.timeout_seconds)
    judge.calls(options.max_seconds_per_sample)
    found.looked_at.insert(0, f"{len(gold)} samples: {trial.scored:,} scores from {trial.samples:,} inputs in "
                           f"{trial.calls:,} calls")  # fmt: skip
    if len(gold) < wanted:
        found.not_seen.insert(0, f"{wanted - len(gold)} of {wanted} samples, and as many cases of each class: the time "
                              "was up (--timeout)")  # fmt: skip
    if isinstance(scorer, ModelScorer):
        state = scorer.state()
        found.faults += scorer.state_faults(state, options.max_head_bias)
        found.facts["state"] = state
        found.looked_at.append("state of the model: modes, dropouts, adapters, head")
        if scorer.untouched:
            found.not_seen.append("whether the trainer freezes the model: it was loaded here, not there")
    return found.report("reward", time.monotonic() - began)


_Tries = list[tuple[str, Callable[[], object]]]


def _tries(
    judge: RewardJudge, scorer: Scorer, perturbations: Mapping[str, Sequence[Perturbation]], options: RewardOptions
) -> _Tries:
    """What is tried after the first scores, by name, in order."""
    if isinstance(judge, JudgeWithoutGold):
        return [("determinism", judge.determinism), ("canaries", judge.canaries),
                ("lengths", lambda: judge.lengths(options.max_length)), ("growth of memory", judge.growth)]  # fmt: skip
    head: _Tries = [("loss of the head", lambda: judge.head(options.max_head_loss))]
    return [
        *(head if isinstance(scorer, ModelScorer) else []),
        ("determinism", judge.determinism), ("canaries", judge.canaries),
        ("perturbations and lengths", lambda: judge.perturbed(
            perturbations, options.max_std, options.min_rank_correlation, options.max_length)),
        ("growth of memory", judge.growth),
    ]  # fmt: skip


def _run(judge: RewardJudge, tries: _Tries, seconds: float) -> None:
    """Run them until the time is up; without one score there is nothing to try, and that is said."""
    names = [name for name, _ in tries]
    try:
        if not judge.scores():
            judge.found.not_seen.append(f"{', '.join(names)}: they need scores, and there is none")
            return
        while tries:
            if is_heard():  # should it end the process, this much is known
                tell("known", report=judge.found.report("reward", 0.0).to_json(), left=[name for name, _ in tries])
            tries[0][1]()
            tries.pop(0)
            if not judge.apart:
                rest = ", ".join(name for name, _ in tries)
                judge.found.not_seen.append(f"{rest}: each text by itself scores the same")
                return
    except OutOfTime:
        judge.note_timeout(seconds, [name for name, _ in tries])


_SCORES_EACH = 30  # scores that a sample takes in all: gold, wrong, again, canaries, lists, perturbations, lengths
_FEWEST = 4


def _affordable(trial: Trial, gold: list[Sample]) -> int:
    """For how many samples as there is time, by what two of them take; four at least."""
    try:
        trial.score(gold[:2])
        began = time.monotonic()
        trial.score(gold[:2])
    except OutOfTime:
        return _FEWEST
    each = (time.monotonic() - began) / len(gold[:2])
    fits = int((trial.deadline - time.monotonic()) / (_SCORES_EACH * max(each, 1e-9)))
    return max(_FEWEST, fits)


def load_target(target: str) -> Scorer:
    """Resolve a directory, or MODULE:NAME of a function or of a model with its `tokenizer` beside it."""
    if Path(target).expanduser().is_dir():
        return load_model(Path(target).expanduser())
    found = load_object(target)
    if hasattr(found, "named_modules") and hasattr(found, "config"):  # a torch module, without importing torch
        tokenizer = load_object(f"{target.rpartition(':')[0]}:tokenizer")
        return ModelScorer(target, found, tokenizer, untouched=False)
    if isinstance(found, type):
        raise SentinelError(f"{target} is a class; name a function, or an instance of the class in its module")
    if not callable(found):
        raise SentinelError(f"{target} is {type(found).__name__}, not a function; name a reward function or model")
    return FunctionScorer(target, found)


_MOST_BARE = 10_000  # rows with a prompt alone, after which no response or answer is sought any more


def _samples(sources: Sequence[str], options: RewardOptions) -> list[Sample]:
    """The first samples with a prompt and a response or an answer; where fewer than two are, prompts alone."""
    out: list[Sample] = []
    bare: list[Sample] = []
    for one in _rows(sources, options.fields):
        completion = one.completion or (options.template.replace("{answer}", one.answer) if one.answer.strip() else "")
        if completion.strip():
            out.append(replace(one, completion=completion))
        else:
            bare.append(one)
        if len(out) >= options.samples or (len(out) < 2 and len(bare) >= _MOST_BARE):
            break
    if len(out) >= 2:
        return out
    named = options.fields.response or options.fields.answer
    prompts = [replace(one, completion="") for one in (*out, *bare)][: options.samples]
    if named or len(prompts) < 2:
        count, what = (len(out), " and a response or answer") if named else (len(prompts), "")
        raise SentinelError(
            f"{', '.join(sources)}: {counted(count, 'sample')} with a prompt{what}, and 2 or more are needed; name the "
            "fields with --prompt, --response, --answer"
        )
    return prompts


def _rows(sources: Sequence[str], given: Fields) -> Iterator[Sample]:
    """Every row that has a prompt."""
    for source in sources:
        rows = read_rows(source)
        first = [row for row in itertools.islice(rows, 64) if row.value is not None]
        fields = known_fields(source, [row.value for row in first if row.value is not None], given)
        for row in itertools.chain(first, rows):
            if row.value is not None and fields is not None:
                sample = sample_of(row.value, fields, f"{row.source}:{row.number}")
                if sample is not None:
                    yield sample


def _perturbations(module: str) -> Mapping[str, Sequence[Perturbation]]:
    if not module:
        return PERTURBATIONS
    own = load_object(f"{module}:PERTURBATIONS")
    if not isinstance(own, Mapping) or not all(callable(one) for one in own.values()):
        raise SentinelError(f"{module}: PERTURBATIONS must map names to functions from text to text")
    return {**PERTURBATIONS, **{str(name): (function,) for name, function in own.items()}}


__all__ = ["RewardOptions", "check_reward", "load_target"]
