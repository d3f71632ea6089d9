"""Logs in the shape of public threads: `data/threads_*.txt`, and the rows of metrics that stand in them.

A case begins with `## name | layer | why`, another file of the same run with `--- NAME`, and a line
`@rows FORM WHAT FIRST LAST TOTAL SEED` stands for rows. The layer is that of the thread's resolution, written down
before anything was run. At that first run 47 of the 58 decidable of the first file were right (81 %), then 27 of 29 of the
second, 24 of 26 of the third, 22 of 26 of the fourth and 23 of 25 of the fifth, each before it was learned from. The sixth
to eighth were written by others and blind: 59 of 69 right (86 %) with 9 of all 75 wrong, 54 of 69 (78 %) with 13 of all
75 wrong, and 77 of 90 (86 %) with 12 of all 99 wrong. Of the eighth batch's verdicts 37 of 38 with a confidence of 0.8 and
more were right, 39 of 46 with 0.6 to 0.8 and one of five below 0.6, which are suspicions said in words since.
The ninth, blind as well: 81 of 91 right (89 %) with 7 of all 99 wrong (7.1 %); 42 of 43 right with 0.8 and more, 30 of 33
with 0.7, 9 of 12 with 0.6: wrong with 0.7 and more 4 of 99 (4.0 %), with 0.8 and more 1 of 99.
The eleventh: 77 of 82 right (94 %) with 5 of all 90 wrong (5.6 %); 39 of 41 right with 0.8 and more, 30 of 32 with 0.7, 8 of
9 with 0.6: wrong with 0.7 and more 4 of 90 (4.4 %). The twelfth: 77 of 87 right (89 %) with 8 of all 94 wrong (8.5 %); 52 of
56 right with 0.8 and more, 19 of 22 with 0.7, 6 of 7 with 0.6: wrong with 0.7 and more 7 of 94 (7.4 %). The tenth and the
thirteenth were measured after both had been learned from: 85 of 92 right (92 %) with 4 of all 100 wrong, 71 of 72 (99 %)
with 1 of all 78 wrong; together 2.8 % wrong, 3 of 178 (1.7 %) with 0.7 and more. Nothing has been learned from these two.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

Row = dict[str, float]


def healthy(step: int, total: int, seed: int) -> Row:
    """Values of a run that learns slowly and noisily."""
    draw = random.Random(f"{seed}/{step}")
    run = random.Random(f"run {seed}")
    lift = step / total
    scale = run.choice((0.08, 0.4, 1.3))
    return {
        "loss": draw.gauss(0, 0.004), "grad": scale * math.exp(draw.gauss(0, 0.3)), "lr": 1e-6 * min(1.0, (step - 1) / 5),
        "reward": 0.2 + 0.35 * lift + draw.gauss(0, 0.06), "std": abs(draw.gauss(0.3, 0.05)),
        "dead": min(0.9, max(0.0, draw.gauss(0.3, 0.1))), "kl": 0.001 + 0.03 * lift * abs(draw.gauss(1, 0.3)),
        "entropy": 0.55 - 0.2 * lift + draw.gauss(0, 0.02), "length": 380 + 150 * lift + draw.gauss(0, 25),
        "cut": max(0.0, draw.gauss(0.05, 0.03)), "gap": abs(draw.gauss(0.009, 0.002)), "clip": abs(draw.gauss(0.001, 0.001)),
        "time": abs(draw.gauss(38, 6)), "limit": 1024.0,
    }  # fmt: skip


def _same(_step: int, _total: int, _row: Row) -> None:
    """Leave it as it is."""


def _on_policy(_step: int, _total: int, row: Row) -> None:
    row.update(loss=0.0, clip=0.0, kl=0.0)


def _nan_at_end(step: int, total: int, row: Row) -> None:
    if step >= total:
        row.update(loss=0.0, grad=math.nan)


def _no_signal(_step: int, _total: int, row: Row) -> None:
    row.update(loss=0.0, grad=0.0, reward=0.0, std=0.0, dead=1.0, kl=0.0)


def _judge_gone(step: int, total: int, row: Row) -> None:
    if step > total // 2:
        row.update(reward=0.0, std=0.0, dead=1.0, loss=0.0, grad=row["grad"] * 1e-3)


def _rate_zero(_step: int, _total: int, row: Row) -> None:
    row.update(lr=0.0, reward=0.3 + (row["reward"] - 0.3) * 0.2, kl=0.0, entropy=0.55)


def _rate_huge(step: int, total: int, row: Row) -> None:
    grown = math.exp(8 * step / total)
    row.update(
        lr=1e-3, grad=row["grad"] * grown, kl=0.02 * grown, reward=max(0.0, 0.3 - step / total), loss=0.01 * grown
    )
    row.update(entropy=0.5 + 6 * step / total)


def _all_cut(_step: int, _total: int, row: Row) -> None:
    row.update(length=row["limit"], cut=1.0, reward=0.0, std=0.0, dead=1.0, grad=0.0, loss=0.0, kl=0.0)


def _entropy_gone(step: int, total: int, row: Row) -> None:
    left = math.exp(-9 * step / total)
    row.update(
        entropy=0.5 * left,
        std=0.3 * left,
        dead=1 - 0.7 * left,
        reward=0.31 - 0.05 * step / total,
        length=140 + 10 * left,
    )


def _entropy_up(step: int, total: int, row: Row) -> None:
    late = max(0.0, step / total - 0.5) * 2
    row.update(
        entropy=0.45 + 7.5 * late,
        length=420 + 600 * late,
        cut=0.05 + 0.95 * late,
        reward=0.45 * (1 - late),
        std=0.3 * (1 - 0.9 * late),
    )
    row.update(kl=0.02 + 3 * late**2, grad=row["grad"] * (1 + 12 * late))


def _kl_overflow(step: int, total: int, row: Row) -> None:
    back = total - step
    if back <= 4:
        row.update(
            kl=[math.nan, math.nan, 31250.5, 187.2, 2.91][back], grad=[math.nan, math.nan, 8641.7, 77.3, 2.6][back]
        )
        row.update(loss=[math.nan, math.nan, 31.25, 0.187, 0.003][back])
    if back <= 1:
        row.update(reward=0.0, std=0.0, dead=1.0, entropy=math.nan, length=row["limit"], cut=1.0)


def _reference_far(step: int, _total: int, row: Row) -> None:
    row.update(kl=11.8 + 0.2 * math.sin(step), loss=0.47)


def _gap_grows(step: int, total: int, row: Row) -> None:
    late = max(0.0, step / total - 0.3) / 0.7
    row.update(gap=0.01 + 3.8 * late**2, reward=row["reward"] * (1 - late), grad=row["grad"] * (1 + 30 * late))


def _reward_nan(step: int, total: int, row: Row) -> None:
    if step >= total - 2:
        row.update(reward=math.nan, std=math.nan)
    if step >= total - 1:
        row.update(grad=math.nan, loss=math.nan, entropy=math.nan)


def _backend_scale(_step: int, _total: int, row: Row) -> None:
    row.update(grad=2.9e9 * (1 + row["loss"]))


def _noisy(step: int, _total: int, row: Row) -> None:
    row.update(reward=0.62 + random.Random(step).uniform(-0.2, 0.2), entropy=row["entropy"] * 0.8)


def _length_blows(step: int, total: int, row: Row) -> None:
    late = step / total
    row.update(length=300 + 724 * late, cut=min(1.0, late**2), reward=0.5 - 0.4 * late**2)


def _zero_gradient(_step: int, _total: int, row: Row) -> None:
    row.update(grad=0.0, loss=0.0, kl=0.0)


def _advantage(_step: int, _total: int, row: Row) -> None:
    row.update(adv=412.0, grad=row["grad"] * 300)


def _spike_and_die(step: int, total: int, row: Row) -> None:
    if step > 0.6 * total:
        row.update(
            reward=0.0, std=0.0, dead=1.0, length=row["limit"], cut=1.0, entropy=0.002, kl=9.4, grad=row["grad"] * 1e-3
        )
    elif step > 0.6 * total - 1:
        row.update(grad=row["grad"] * 900, kl=4.1)


def _gap_from_start(_step: int, _total: int, row: Row) -> None:
    row.update(gap=0.86 + row["loss"], clip=0.54 + row["loss"])


def _host_memory(step: int, total: int, row: Row) -> None:
    row.update(host=102 + 790 * step / total)


def _grad_nan_late(step: int, total: int, row: Row) -> None:
    if step > total - 8:
        row.update(grad=math.nan, loss=0.0)


def _rate_jumped(step: int, total: int, row: Row) -> None:
    row.update(lr=5e-5, reward=max(0.0, 0.3 - 0.01 * (step - total // 2)), kl=0.02 * math.exp((step - total // 2) / 9))


def _always_nan(_step: int, _total: int, row: Row) -> None:
    row.update(grad=math.nan)


def _drifts(step: int, total: int, row: Row) -> None:
    late = step / total
    row.update(kl=0.01 * math.exp(5 * late), reward=row["reward"] * (1.2 - late), grad=row["grad"] * (1 + 6 * late))


def _solved(step: int, total: int, row: Row) -> None:
    late = min(1.0, 1.5 * step / total)
    row.update(
        reward=min(1.0, 0.4 + 0.58 * late), std=0.3 * (1.02 - late), dead=0.2 + 0.75 * late, entropy=0.5 - 0.42 * late
    )


def _cosine(step: int, total: int, row: Row) -> None:
    row.update(lr=5e-7 * (1 + math.cos(math.pi * step / total)))


def _group_of_one(step: int, _total: int, row: Row) -> None:
    row.update(std=math.nan, loss=0.0)
    if step > 1:
        row.update(grad=math.nan)


def _all_right(_step: int, _total: int, row: Row) -> None:
    row.update(reward=1.0, std=0.0, dead=1.0, grad=0.0, loss=0.0, adv=0.0)


def _shrinks(step: int, total: int, row: Row) -> None:
    row.update(
        length=max(1.0, row["length"] * (1 - 2 * step / total)),
        reward=max(0.02, row["reward"] * (1 - 1.6 * step / total)),
    )


def _creeps(step: int, _total: int, row: Row) -> None:
    row.update(gib=40 + 0.6 * step)


def _differs(_step: int, _total: int, row: Row) -> None:
    row.update(gap=0.42 + row["loss"])


def _kl_negative(_step: int, _total: int, row: Row) -> None:
    row.update(kl=-14.0 + row["reward"])


def _plateau(step: int, _total: int, row: Row) -> None:
    row.update(reward=0.44 + random.Random(step).gauss(0, 0.03), kl=0.02)


def _negative(step: int, total: int, row: Row) -> None:
    row.update(reward=-5 + 3 * step / total + random.Random(step).gauss(0, 0.4), std=0.9)


def _some_dead(step: int, _total: int, row: Row) -> None:
    if step % 9 == 0:
        row.update(grad=0.0, loss=0.0, std=0.0, dead=1.0, reward=float(step % 2), adv=0.0)


def _late(step: int, total: int, row: Row) -> None:
    if step < total // 4:
        row.update(reward=abs(random.Random(step).gauss(0, 0.004)))


WHAT: dict[str, Callable[[int, int, Row], None]] = {
    "healthy": _same, "on-policy": _on_policy, "nan-at-end": _nan_at_end, "no-signal": _no_signal, "judge-gone": _judge_gone,
    "rate-zero": _rate_zero, "rate-huge": _rate_huge, "all-cut": _all_cut, "entropy-gone": _entropy_gone,
    "entropy-up": _entropy_up, "kl-overflow": _kl_overflow, "reference-far": _reference_far, "gap-grows": _gap_grows,
    "reward-nan": _reward_nan, "backend-scale": _backend_scale, "noisy": _noisy, "length-blows": _length_blows,
    "drifts": _drifts, "solved": _solved, "cosine": _cosine, "group-of-one": _group_of_one, "all-right": _all_right,
    "shrinks": _shrinks, "creeps": _creeps, "differs": _differs, "kl-negative": _kl_negative, "plateau": _plateau,
    "negative": _negative, "some-dead": _some_dead, "late": _late, "gap-from-start": _gap_from_start, "host-memory": _host_memory, "grad-nan-late": _grad_nan_late,
    "rate-jumped": _rate_jumped, "always-nan": _always_nan, "zero-gradient": _zero_gradient, "advantage": _advantage, "spike-and-die": _spike_and_die,
}  # fmt: skip


# ---- how the trainers print a step


def trl(step: int, total: int, row: Row) -> Iterator[str]:
    done = int(10 * step / total)
    bar = f"{100 * step // total:3d}%|{'█' * done}{' ' * (10 - done)}| {step}/{total} [{step * 38 // 60:02d}:{step * 38 % 60:02d}<1:10:00, {row['time']:.2f}s/it]"
    values = {
        "loss": round(row["loss"], 4), "grad_norm": row["grad"], "learning_rate": row["lr"], "num_tokens": 4096.0 * step,
        "completions/mean_length": round(row["length"], 2), "completions/min_length": 41.0, "completions/max_length": row["limit"],
        "completions/clipped_ratio": round(row["cut"], 4), "rewards/accuracy/mean": row["reward"], "rewards/accuracy/std": row["std"],
        "reward": row["reward"], "reward_std": row["std"], "frac_reward_zero_std": round(row["dead"], 4), "kl": row["kl"],
        "entropy": row["entropy"], "clip_ratio/low_mean": 0.0, "clip_ratio/high_mean": row["clip"], "clip_ratio/region_mean": row["clip"],
        "sampling/sampling_logp_difference/mean": row["gap"], "sampling/importance_sampling_ratio/mean": 1.0 - row["gap"] / 10,
        "step_time": row["time"], "epoch": round(step / total, 2),
    }  # fmt: skip
    yield f"\r{bar}"
    yield str(values)


def trl_no_kl(step: int, total: int, row: Row) -> Iterator[str]:
    """With beta 0 there is no `kl`; the last value of a window that had none prints as None."""
    for line in trl(step, total, row):
        yield line.replace(f"'kl': {row['kl']!r}, ", "").replace(
            f"'entropy': {row['entropy']!r}", "'entropy': None" if step == 1 else f"'entropy': {row['entropy']!r}"
        )


def swift(step: int, total: int, row: Row) -> Iterator[str]:
    values = {
        "loss": round(row["loss"], 8), "grad_norm": round(row["grad"], 8), "learning_rate": row["lr"], "memory(GiB)": round(row.get("gib", 71.4), 2),
        "train_speed(iter/s)": 0.0262, "completions/mean_length": round(row["length"], 2), "completions/max_length": row["limit"],
        "completions/clipped_ratio": round(row["cut"], 4), "reward": round(row["reward"], 6), "reward_std": round(row["std"], 6),
        "frac_reward_zero_std": round(row["dead"], 4), "rewards/MathAccuracy/mean": round(row["reward"], 6), "rewards/MathAccuracy/std": round(row["std"], 6),
        "kl": round(row["kl"], 6), "clip_ratio/region_mean": round(row["clip"], 6), "entropy/mean": round(row["entropy"], 6),
        "epoch": round(step / total, 2), "global_step/max_steps": f"{step}/{total}", "percentage": f"{100 * step / total:.2f}%",
        "elapsed_time": f"{step * 38 // 60}m {step * 38 % 60}s", "remaining_time": "1h 2m 3s",
    }  # fmt: skip
    yield str(values)


def verl(step: int, _total: int, row: Row) -> Iterator[str]:
    adv = row.get("adv", 1.8)
    yield (
        f"\x1b[36m(TaskRunner pid=48211)\x1b[0m step:{step} - actor/entropy:{row['entropy']} - actor/kl_loss:{row['kl']} - actor/kl_coef:0.001"
        f" - actor/pg_loss:{row['loss']} - actor/pg_clipfrac:{row['clip']} - actor/ppo_kl:{row['clip'] / 10} - actor/grad_norm:{row['grad']}"
        f" - actor/lr:{row['lr']:.3f} - training/global_step:{step} - training/rollout_probs_diff_mean:{row['gap']} - training/rollout_probs_diff_max:{min(1.0, row['gap'] * 20)}"
        f" - critic/score/mean:{row['reward']} - critic/score/max:{1.0 if row['std'] else row['reward']} - critic/score/min:0.0 - critic/rewards/mean:{row['reward']}"
        f" - critic/advantages/mean:{row['loss']} - critic/advantages/max:{adv} - critic/advantages/min:{-adv} - response_length/mean:{row['length']}"
        f" - response_length/max:{row['limit']} - response_length/clip_ratio:{row['cut']} - perf/max_memory_allocated_gb:61.2 - perf/cpu_memory_used_gb:{row.get('host', 98.2)} - timing_s/step:{row['time']}"
    )


def openrlhf(step: int, _total: int, row: Row) -> Iterator[str]:
    values = {
        "policy_loss": row["loss"], "actor_lr": row["lr"], "ppo_clip_ratio": row["clip"], "kl": row["kl"], "reward": row["reward"], "return": row["reward"],
        "response_length": row["length"], "total_length": row["length"] + 120, "entropy_loss": row["entropy"], "grad_norm": row["grad"], "truncated": row["cut"],
    }  # fmt: skip
    yield f"(PPOTrainer pid=9012) INFO 06-11 09:{step // 60:02d}:{step % 60:02d} ppo_trainer.py:412] ✨ Global step {step}: {values}"


def nemo(step: int, total: int, row: Row) -> Iterator[str]:
    yield f"========================= Step {step}/{total} ========================="
    yield "▶ Preparing batch..."
    yield f"▶ Generating responses for batch of size {512}..."
    yield "▶ Training policy..."
    yield "📊 Training Results:"
    yield f"  • Loss: {row['loss']:.4f}"
    yield f"  • Generation KL Error: {row['gap'] / 10:.4f}"
    yield f"  • Avg Reward: {row['reward']:.4f}"
    yield f"  • Mean Generation Length: {row['length']:.4f}"
    yield ""
    yield "⏱️  Timing:"
    yield f"  • Total step time: {row['time']:.2f}s"
    yield f"  • policy_training: {row['time'] / 3:.2f}s (33.3%)"


def slime(step: int, _total: int, row: Row) -> Iterator[str]:
    values = {
        "train/loss": row["loss"], "train/pg_loss": row["loss"], "train/entropy_loss": row["entropy"], "train/pg_clipfrac": row["clip"], "train/ppo_kl": row["clip"] / 10,
        "train/kl_loss": row["kl"], "train/train_rollout_logprob_abs_diff": row["gap"], "train/grad_norm": row["grad"], "train/lr-pg_0": row["lr"], "train/step": step,
    }  # fmt: skip
    yield f"(RolloutManager pid=3311) [2026-02-03 04:11:09] rollout.py:214 - rollout {step}: {{'rollout/response_len/mean': {row['length']}, 'rollout/raw_reward': {row['reward']}, 'rollout/truncated_ratio': {row['cut']}}}"
    yield f"(MegatronTrainRayActor pid=3390) [2026-02-03 04:12:31] model.py:511 - step {step}: {values}"


def megatron(step: int, total: int, row: Row) -> Iterator[str]:
    scale = max(65536.0, 2.0**32 / 2**step)
    yield (
        f" [2026-01-09 10:{step // 60:02d}:{step % 60:02d}] iteration {step:8d}/{total:8d} | consumed samples: {step * 512:12d} | elapsed time per iteration (ms): {row['time'] * 1000:.1f} |"
        f" learning rate: {row['lr']:.6E} | global batch size:   512 | lm loss: {1.9 - 0.3 * step / total + row['loss']:.6E} | loss scale: {scale:.1f} | grad norm: {row['grad']:.3f} |"
        f" number of skipped iterations: {1 if scale > 65536 else 0:3d} | number of nan iterations:   0 |"
    )


FORMS = {
    form.__name__.replace("_", "-"): form for form in (trl, trl_no_kl, swift, verl, openrlhf, nemo, slime, megatron)
}


def rows(form: str, what: str, first: int, last: int, total: int, seed: int) -> Iterator[str]:
    """Print steps `first` to `last`; what goes wrong is placed relative to `last`."""
    for step in range(first, last + 1):
        row = healthy(step, total, seed)
        WHAT[what](step, last, row)
        yield from FORMS[form](step, total, row)


def cases() -> Iterator[tuple[str, str, dict[str, list[str]]]]:
    """Give name, layer and the lines of each file of every case."""
    for path in sorted((Path(__file__).parent / "data").glob("threads_*.txt")):
        for block in path.read_text(encoding="utf-8").split("\n## "):
            head, _, body = block.removeprefix("## ").partition("\n")
            name, layer, _ = (part.strip() for part in head.split("|", 2))
            yield name, layer, _files(body.rstrip("\n"))


def _files(body: str) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {"rank0.log": []}
    for line in body.split("\n"):
        if line.startswith("--- "):
            files[line[4:]] = []
        elif line.startswith("@rows "):
            form, what, *numbers = line.split()[1:]
            next(reversed(files.values())).extend(rows(form, what, *map(int, numbers)))
        else:
            next(reversed(files.values())).append(line)
    return files
