"""Data faults: what reaches the policy is not what it should be."""

from __future__ import annotations

from typing import Any

from benchmarks.faultbench import policy as world
from benchmarks.faultbench.fault import HARD, LOOP1, LOOP2, SUBTLE, Fault, Mechanism


def _batch(change: Any) -> Any:
    def inject(fault: Fault) -> None:
        fault.at("batch", change)

    return inject


def _rollout(change: Any) -> Any:
    def inject(fault: Fault) -> None:
        fault.at("rollout", change)

    return inject


def _set(name: str, value: float, rows: int | None = None, columns: int | None = None) -> Any:
    def change(batch: dict[str, Any]) -> dict[str, Any]:
        tensor = batch[name].clone()
        tensor[:rows, :columns] = value
        return {**batch, name: tensor}

    return _batch(change)


def _all_masked(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "completion_mask": batch["completion_mask"] * 0}


def _empty_rows(batch: dict[str, Any]) -> dict[str, Any]:
    prompt, completion = batch["prompt_mask"].clone(), batch["completion_mask"].clone()
    prompt[0], completion[0] = 0, 0
    return {**batch, "prompt_mask": prompt, "completion_mask": completion}


def _empty_prompts(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "prompt_mask": batch["prompt_mask"] * 0}


def _right_padded(batch: dict[str, Any]) -> dict[str, Any]:
    lengths = batch["prompt_mask"].sum(1).tolist()
    ids, mask = batch["prompt_ids"].clone(), batch["prompt_mask"].clone()
    for row, length in enumerate(lengths):
        ids[row] = ids[row].roll(length)
        mask[row] = mask[row].roll(length)
    return {**batch, "prompt_ids": ids, "prompt_mask": mask}


def _half_mask(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "completion_mask": batch["completion_mask"].float() * 0.5}


def _integer_advantages(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "advantages": batch["advantages"].long()}


def _short_advantages(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "advantages": batch["advantages"][:1]}


def _ban_eos(fault: Fault) -> None:
    def ban(_: Any) -> None:
        fault.run.ban_eos = True

    fault.at("load", ban)


def _only_eos(batch: dict[str, Any]) -> dict[str, Any]:
    ids, kept = batch["completion_ids"][:, :1].clone(), batch["completion_mask"][:, :1]
    ids[:] = world.EOS
    return {
        **batch,
        "completion_ids": ids,
        "completion_mask": kept,
        "sampling_per_token_logps": batch["sampling_per_token_logps"][:, :1],
    }


def _mixed(fault: Fault) -> None:
    def shuffle(rows: list[Any]) -> list[Any]:
        size = 6
        return [rows[(index // size + index % 2 * 1) * size % len(rows)] for index in range(len(rows))]

    fault.at("prompts", shuffle)


def _same_prompt(fault: Fault) -> None:
    def repeat(rows: list[Any]) -> list[Any]:
        first = fault.memory.setdefault("row", rows[0])
        return [first] * len(rows)

    fault.at("prompts", repeat)


def _unknown(fault: Fault) -> None:
    def blur(rows: list[Any]) -> list[Any]:
        return [
            ([world.UNK if token in world.DIGITS else token for token in prompt], wanted) for prompt, wanted in rows
        ]

    fault.at("prompts", blur)


def _shuffled_answers(fault: Fault) -> None:
    def shift(rows: list[Any]) -> list[Any]:
        moved = rows[6:] + rows[:6]
        return [(prompt, wanted) for (prompt, _), (_, wanted) in zip(rows, moved, strict=True)]

    fault.at("prompts", shift)


def _shuffled_completions(batch: dict[str, Any]) -> dict[str, Any]:
    names = ("completion_ids", "completion_mask", "sampling_per_token_logps")
    return {**batch, **{name: batch[name].roll(7, 0) for name in names}}


def _stale_batch(fault: Fault) -> None:
    def replay(batch: dict[str, Any]) -> dict[str, Any]:
        return dict(fault.memory.setdefault("batch", dict(batch)))

    fault.at("batch", replay)


def _cut_prompts(fault: Fault) -> None:
    def lengthen(rows: list[Any]) -> list[Any]:
        return [((prompt * 4)[: world.PROMPT], wanted) for prompt, wanted in rows]

    fault.at("prompts", lengthen)


def _garbage_prompts(fault: Fault) -> None:
    def noise(rows: list[Any]) -> list[Any]:
        out = []
        for index in range(0, len(rows), 6):
            junk = fault.run.draw.choices(range(40, 64), k=6)
            out += [([*junk, world.SEP], rows[index][1])] * 6
        return out

    fault.at("prompts", noise)


def _position_shift(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "completion_ids": batch["completion_ids"].roll(1, 1)}


ROWS = [
    Mechanism(name="token_out_of_vocabulary", layer="data", what="one completion id is 9999: the forward dies", severity=HARD,
              inject=_set("completion_ids", 9999, 1, 1), roots=("data",), trainers=(LOOP2, "trl1"), rank=1, start=20, steps=30, ends=True),
    Mechanism(name="negative_token_id", layer="data", what="label padding (-100) in the inputs", severity=HARD,
              inject=_set("completion_ids", -100, 2, 2), roots=("data",), start=20, steps=30, ends=True),
    Mechanism(name="no_token_in_loss", layer="data", what="all completions are masked out", severity=HARD,
              inject=_batch(_all_masked), roots=("data",), trainers=(LOOP2, "trl1"), start=20, steps=40),
    Mechanism(name="empty_attention_row", layer="data", what="one row without any attended token, on one rank", severity=HARD,
              inject=_batch(_empty_rows), roots=("data",), trainers=(LOOP2,), rank=1, start=20, steps=40),
    Mechanism(name="empty_prompts", layer="data", what="all prompts masked out", severity=HARD,
              inject=_batch(_empty_prompts), roots=("data",), trainers=(LOOP1,), start=20, steps=40),
    Mechanism(name="right_padding", layer="data", what="prompts padded to the right", inject=_batch(_right_padded),
              roots=("data",), start=20, steps=40),
    Mechanism(name="fractional_mask", layer="data", what="loss weights of 0.5 in the mask", severity=HARD,
              inject=_batch(_half_mask), roots=("data",), start=20, steps=40),
    Mechanism(name="integer_advantages", layer="data", what="advantages cast to int64", inject=_batch(_integer_advantages),
              roots=("data",), start=20, steps=40),
    Mechanism(name="broadcast_advantage", layer="data", what="one advantage for the whole batch, broadcast", severity=HARD,
              inject=_batch(_short_advantages), roots=("data",), start=20, steps=40),
    Mechanism(name="no_end_token", layer="data", what="rollout cannot end any more: every completion is cut", inject=_ban_eos,
              roots=("data",), steps=70),
    Mechanism(name="only_end_token", layer="data", what="every completion is an end token", inject=_rollout(_only_eos),
              roots=("data",), steps=60),
    Mechanism(name="mixed_groups", layer="data", what="groups hold two prompts", severity=HARD, inject=_mixed,
              roots=("data",), start=20, steps=40),
    Mechanism(name="same_prompt_everywhere", layer="data", what="every group of the batch asks the same question", inject=_same_prompt,
              roots=("data",), severity=SUBTLE, start=20, steps=60),
    Mechanism(name="same_prompt_on_one_rank", layer="data", what="rank 1 asks one question for ever", inject=_same_prompt,
              roots=("data",), severity=SUBTLE, trainers=(LOOP2,), rank=1, start=20, steps=60),
    Mechanism(name="unknown_tokens", layer="data", what="the tokenizer gives <unk> for all digits", inject=_unknown,
              roots=("data",), steps=60),
    Mechanism(name="answers_of_other_prompts", layer="data", what="prompts and reference answers are paired wrongly",
              inject=_shuffled_answers, roots=("data", "reward"), steps=80),
    Mechanism(name="completions_of_other_prompts", layer="data", what="completions shuffled against prompts after sampling",
              inject=_rollout(_shuffled_completions), roots=("data", "policy", "reward"), steps=70),
    Mechanism(name="batch_repeats", layer="data", what="the loader gives the same finished batch for ever", inject=_stale_batch,
              roots=("data", "policy"), severity=SUBTLE, steps=110),
    Mechanism(name="prompts_cut_off", layer="data", what="prompts longer than the limit lose their end", inject=_cut_prompts,
              roots=("data",), severity=SUBTLE, start=20, steps=60),
    Mechanism(name="prompts_garbled", layer="data", what="prompts are noise, answers stay: wrong template or encoding",
              inject=_garbage_prompts, roots=("data", "reward"), steps=80),
    Mechanism(name="completions_shifted", layer="data", what="completion ids are one place off their mask and log-probs",
              inject=_batch(_position_shift), roots=("data", "policy"), steps=70),
]  # fmt: skip
