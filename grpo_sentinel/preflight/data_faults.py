"""The kinds of fault that `check data` knows: code, level, message, remedy, and whether a clean copy drops it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import Fault

EXAMPLES = 3
_MOST_GROUPS = 16


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault; `message` takes the count."""

    code: str
    level: Level
    message: str
    remedy: str
    drop: bool = True
    whole: bool = False  # of all rows together: its one example says how much, not the count


_B, _D = Level.BROKEN, Level.DOUBTFUL
KINDS: dict[str, Kind] = {
    kind.code: kind
    for kind in (
        Kind("unreadable", _B, "rows cannot be read", "repair or drop them; --write-clean FILE leaves them out"),
        Kind("encoding", _B, "rows are not UTF-8", "find the encoding they were written in and convert the file"),
        Kind("missing-field", _B, "rows lack a field that the others have", "fill the field, or drop the rows"),
        Kind("bad-field", _B, "rows have a prompt or response that is neither text nor messages",
             "write text, or a list of {role, content}"),
        Kind("empty-prompt", _B, "prompts are empty", "drop them: a group about nothing teaches nothing"),
        Kind("empty-response", _B, "responses are empty", "drop them, or see why the model answered with nothing"),
        Kind("empty-answer", _B, "answers are missing or empty",
             "a reward that compares with it scores every completion alike"),
        Kind("odd-answer", _D, "answers are of another kind than most",
             "a reward function that compares text takes no number, and the other way round: write them alike", False),
        Kind("reward-not-finite", _B, "rewards are NaN or infinite",
             "find what returned them: one makes the advantages of its whole group NaN"),
        Kind("reward-not-a-number", _B, "rewards are not numbers", "write numbers, not text or null"),
        Kind("reward-range", _B, "rewards lie outside the given range", "clip or rescale them where they are made"),
        Kind("empty-group", _B, "groups have no response", "drop them"),
        Kind("group-mismatch", _B, "groups have not one reward for each response", "score every response once"),
        Kind("too-long", _B, "samples are longer than the limit, measured without truncation",
             "drop or shorten them, or raise the limit: truncation cuts the question or the end of the answer"),
        Kind("template", _B, "prompts break the chat template", "correct roles and order to what the template takes"),
        Kind("doubled-bos", _B, "prompts begin with two BOS tokens",
             "tokenize templated text with add_special_tokens=False", False),
        Kind("poison", _B, "texts hold NUL, U+FFFD, lone surrogates or control characters",
             "see how they were decoded: U+FFFD and surrogates are lost text, controls upset tokenizers"),
        Kind("special-token", _D, "texts of users hold special tokens as text",
             "remove or escape them: a tokenizer turns them into control tokens that end a turn or fake a role"),
        Kind("invisible", _D, "texts hold characters that nobody sees",
             "remove them: a tokenizer sees them, and a reward that compares text too", False),
        Kind("odd-role", _D, "messages have a role that chat templates do not know",
             "write system, user, assistant or tool: a template refuses it, drops it or writes it as it is"),
        Kind("no-question", _D, "prompts are a system message alone", "give the question as a message of the user"),
        Kind("same-pair", _B, "pairs have the same text as chosen and rejected", "drop them: nothing is preferred"),
        Kind("duplicate", _D, "rows repeat an earlier one",
             "drop them, or mean it (--repeats 1): they weigh twice and inflate evaluation"),
        Kind("conflicting-answer", _D, "rows repeat the prompt of an earlier one and give another answer",
             "see which is right: the same completion is rewarded in one row and punished in the other"),
        Kind("leakage", _B, "prompts stand in the evaluation set too",
             "drop them from training: the evaluation measures memory"),
        Kind("flat-groups", _B, "rewards are equal within each group",
             "no completion has an advantage, so nothing is learned: see what the reward tells completions apart by",
             False, whole=True),
        Kind("constant-answer", _D, "answers are all the same",
             "see how the column was filled: one completion would be right for every prompt", False, whole=True),
        Kind("constant-reward", _D, "rewards are all the same",
             "a group of equal rewards has no advantage: nothing is learned", False, whole=True),
        Kind("reward-outlier", _D, "rewards lie more than 10 standard deviations from the mean",
             "look at them: one such reward decides the advantages of its group", False, whole=True),
    )
}  # fmt: skip


@dataclass(slots=True)
class Tally:
    """Counts and first examples by code; memory does not grow with the data."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    details: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, code: str, example: str, detail: str = "") -> None:
        """Count one fault; `example` names its place, `detail` groups (a field's name)."""
        self.counts[code] = self.counts.get(code, 0) + 1
        kept = self.examples.setdefault(code, [])
        if len(kept) < EXAMPLES:
            kept.append(example)
        if detail:
            groups = self.details.setdefault(code, {})
            if detail in groups or len(groups) < _MOST_GROUPS:
                groups[detail] = groups.get(detail, 0) + 1

    def wants_example(self, code: str) -> bool:
        """Whether another example of it would be kept: making one costs more than counting."""
        return len(self.examples.get(code, ())) < EXAMPLES

    def take(self, code: str) -> tuple[str, ...]:
        """Count one kind no longer; gives its examples."""
        for table in (self.counts, self.details):
            table.pop(code, None)
        return tuple(self.examples.pop(code, ()))

    def merge(self, other: Tally) -> None:
        """Take in what was counted after this."""
        for code, count in other.counts.items():
            self.counts[code] = self.counts.get(code, 0) + count
            kept = self.examples.setdefault(code, [])
            kept += other.examples.get(code, [])[: EXAMPLES - len(kept)]
            groups = self.details.setdefault(code, {}) if code in other.details else {}
            for detail, n in other.details.get(code, {}).items():
                if detail in groups or len(groups) < _MOST_GROUPS:
                    groups[detail] = groups.get(detail, 0) + n

    def faults(self) -> Iterable[Fault]:
        """One fault per kind that was seen, in the order of the table."""
        for code, kind in KINDS.items():
            count = self.counts.get(code, 0)
            if count:
                groups = self.details.get(code, {})
                examples = tuple(self.examples.get(code, ()))
                detail = ", ".join(f"{name} {n:,}" for name, n in sorted(groups.items(), key=lambda item: -item[1]))
                yield Fault(
                    level=kind.level, code=code, where="", remedy=kind.remedy, count=count, subject=", ".join(groups),
                    message=f"{kind.message}: {examples[0] if kind.whole else format(count, ',')}"
                    + (f" ({detail})" if detail else ""),
                    examples=() if kind.whole else examples,
                )  # fmt: skip


__all__ = ["EXAMPLES", "KINDS", "Kind", "Tally"]
