"""What a pass over all rows says in the end: faults, notes, what was looked at and what could not be seen."""

from __future__ import annotations

from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_checks import judge_rewards
from grpo_sentinel.preflight.data_faults import KINDS
from grpo_sentinel.preflight.data_leakage import Evaluated
from grpo_sentinel.preflight.data_pass import Pass
from grpo_sentinel.preflight.data_repeats import MOST_REMEMBERED
from grpo_sentinel.preflight.data_tokens import NO_TEMPLATE
from grpo_sentinel.preflight.report import CheckReport, gravest_first
from grpo_sentinel.wording import counted


def report_of(done: Pass, sources: tuple[str, ...], seconds: float, evaluated: Evaluated) -> CheckReport:
    """Sum up; `evaluated` is the evaluation set. Raises `SentinelError` when there was not a single row."""
    seen = done.totals
    if not seen.total:
        raise SentinelError(f"{', '.join(sources)}: there is not one row in it; give a file with samples")
    for code, text, detail in judge_rewards(seen.rewards.moments()):
        seen.tally.add(code, text, detail)
    if why := seen.answers.fault():
        seen.tally.add("constant-answer", why)
    notes = (*(done.encoder.notes() if done.encoder else ()), *_renamed(done), *_no_template(done))
    if "constant-reward" not in seen.tally.counts:
        if why := seen.groups.fault():
            seen.tally.add("flat-groups", why)
        elif why := seen.groups.note():
            notes = (*notes, why)
    if done.repeats.count and (why := done.repeats.note(seen.total, done.limits.repeats)):
        seen.bad -= seen.only_repeated
        once = "; the clean copy holds one of each, --repeats 1 keeps all" if done.copy and not done.all_kept else ""
        notes = (*notes, f"{why} (first {seen.tally.take('duplicate')[0]}){once}")
    return CheckReport(
        kind="data", subject=", ".join(sources), looked_at=_looked_at(done, evaluated),
        not_seen=_not_seen(done, evaluated),
        faults=gravest_first(list(seen.tally.faults())), notes=notes, facts=_facts(done), seconds=seconds,
    )  # fmt: skip


def _renamed(done: Pass) -> tuple[str, ...]:
    """Fields that are prompts to us and not to TRL."""
    seen = done.totals
    names = {fields.prompt for fields in seen.shapes.values() if fields.shape in ("plain", "conversational")}
    return tuple(f"prompts stand in the field {name}: TRL wants prompt (rename_column)" for name in sorted(names))


def _no_template(done: Pass) -> tuple[str, ...]:
    """Messages that nothing here can write as text."""
    messages = any("conversation" in fields.shape for fields in done.totals.shapes.values())
    return (NO_TEMPLATE,) if messages and done.encoder is not None and not done.encoder.has_template else ()


def _looked_at(done: Pass, evaluated: Evaluated) -> tuple[str, ...]:
    seen = done.totals
    shapes = {fields.shape: fields for fields in seen.shapes.values()}
    read = [f"{counted(len(seen.rows), 'file')}, {counted(seen.total, 'row')}, {seen.bad:,} with a fault"]
    read += [f"shape {name}: fields {', '.join(fields.named())}" for name, fields in shapes.items()]
    if evaluated.prompts:
        read.append(f"{counted(len(evaluated.prompts), 'prompt')} of the evaluation set")
    return tuple(read)


def _not_seen(done: Pass, evaluated: Evaluated) -> tuple[str, ...]:
    seen = done.totals
    have = {
        part for fields in seen.shapes.values() for part in ("response", "answer", "reward") if getattr(fields, part)
    }
    out = [
        f"{part}s: no such field is recognised (--{part} FIELD)" for part in ("answer", "reward") if part not in have
    ]
    if done.encoder is None:
        out.append("tokens: lengths are in characters (--tokenizer DIR)")
    if done.limit is None:
        out.append("lengths against a limit (--max-length N)")
    if evaluated.lost:
        out.append(f"leakage: {counted(evaluated.lost, 'row')} of the evaluation set without a prompt that can be read "
                   "(check data on it says why)")  # fmt: skip
    elif not evaluated.prompts:
        out.append("leakage into an evaluation set (--eval FILE)")
    if done.repeats.forgetful:
        out.append(f"duplicates beyond the first {MOST_REMEMBERED:,} distinct rows")
    if media := {fields.media for fields in seen.shapes.values() if fields.media}:
        out.append(f"duplicates and leakage: {', '.join(sorted(media))} would have to be compared, not the text alone")
    return tuple(out)


def _facts(done: Pass) -> dict[str, object]:
    seen = done.totals
    unit = "tokens" if done.encoder else "characters"
    facts: dict[str, Any] = {
        "rows": seen.total, "rows_with_faults": seen.bad, "rows_by_file": dict(seen.rows),
        "faults": {code: seen.tally.counts[code] for code in KINDS if code in seen.tally.counts},
        "length_unit": unit, "lengths": seen.lengths.summary(), "length_limit": done.limit,
    }  # fmt: skip
    if done.encoder:
        facts["prompt_lengths"] = seen.prompts.summary()
    rewards = seen.rewards.moments()
    if rewards.count:
        facts["rewards"] = {
            "count": int(rewards.count), "mean": rewards.mean, "std": rewards.std(),
            "min": rewards.low, "max": rewards.high,
        }  # fmt: skip
    if seen.groups.count:
        facts["groups"] = {"count": seen.groups.count, "all_equal": seen.groups.flat}
    if done.copy is not None:
        facts["clean_copy"] = {
            "path": str(done.copy.path), "kept": done.copy.kept, "dropped": done.copy.dropped,
            "dropped_path": str(done.copy.dropped_path),
        }  # fmt: skip
    return facts


__all__ = ["report_of"]
