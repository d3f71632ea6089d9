"""Logs that stand for the unseen: series in every trainer's print, healthy and faulty, and crash texts from a file.

`CASES` maps a name to `(lines, layer)`. Half of them, chosen by a hash of the name, are held out: nothing was adjusted
by looking at those (see `held_out`).
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable
from pathlib import Path

Values = dict[str, object]
Fault = Callable[[int, int, Values], None]  # step (from 1), steps, values of the row: changes them


def held_out(name: str) -> bool:
    """Tell whether a case belongs to the half that is only scored."""
    return zlib.crc32(name.encode()) % 2 == 1


# ---- one healthy step of each trainer, under common names: the printers below rename them


def healthy(step: int, steps: int, seed: int) -> Values:
    """Common quantities of a run that learns slowly; noise as real runs have it."""
    draw = random.Random(seed * 100003 + step)
    rise = step / steps

    def around(level: float, spread: float) -> float:
        return level * (1 + spread * draw.gauss(0, 1))

    return {
        "loss": draw.gauss(0, 2e-3), "grad": abs(around(0.2 + (seed % 7) / 5, 0.25)), "lr": 1e-6 * min(1, step / 4),
        "reward": min(1.0, max(0.0, around(0.25 + 0.3 * rise, 0.15))), "std": abs(around(0.28, 0.2)),
        "zero": min(0.9, abs(around(0.25, 0.4))), "kl": abs(around(0.002 + 0.02 * rise, 0.3)),
        "entropy": abs(around(0.6 - 0.25 * rise, 0.05)), "length": abs(around(420 + 120 * rise, 0.06)),
        "cut": min(0.3, abs(around(0.06, 0.5))), "gap": abs(around(0.011, 0.2)), "time": abs(around(41, 0.2)),
        "memory": around(61, 0.004), "advantage": min(2.5, abs(around(1.9, 0.1))),
    }  # fmt: skip


def show(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, float) and math.isfinite(value) else str(value)


def print_trl(step: int, steps: int, v: Values) -> list[str]:
    row: Values = {
        "loss": v["loss"], "grad_norm": v["grad"], "learning_rate": v["lr"], "num_tokens": 9000.0 * step,
        "completions/mean_length": v["length"], "completions/min_length": 31.0, "completions/max_length": 1024.0,
        "completions/clipped_ratio": v["cut"], "rewards/judge/mean": v["reward"], "rewards/judge/std": v["std"],
        "reward": v["reward"], "reward_std": v["std"], "frac_reward_zero_std": v["zero"], "kl": v["kl"], "entropy": v["entropy"],
        "clip_ratio/region_mean": 0.0, "sampling/sampling_logp_difference/mean": v["gap"], "step_time": v["time"],
        "epoch": round(step / steps, 3),
    }  # fmt: skip
    body = ", ".join(f"'{k}': {show(x, '.6g')}" for k, x in row.items() if x != "gone")
    return [f"{100 * step // steps:3d}%|█▍        | {step}/{steps} [12:10<1:01:02, 41.02s/it]\r{{{body}}}"]


def print_old_trl(step: int, steps: int, v: Values) -> list[str]:
    row = {"loss": v["loss"], "grad_norm": v["grad"], "learning_rate": v["lr"], "rewards/score": v["reward"], "reward": v["reward"],
           "reward_std": v["std"], "completion_length": v["length"], "kl": v["kl"], "epoch": step / steps}  # fmt: skip
    return ["{" + ", ".join(f"'{k}': {show(x, '.4g')}" for k, x in row.items() if x != "gone") + "}"]


def print_swift(step: int, steps: int, v: Values) -> list[str]:
    row = {"loss": v["loss"], "grad_norm": v["grad"], "learning_rate": v["lr"], "memory(GiB)": v["memory"],
           "train_speed(iter/s)": 0.024, "completions/mean_length": v["length"], "completions/clipped_ratio": v["cut"],
           "rewards/MathAccuracy/mean": v["reward"], "rewards/MathAccuracy/std": v["std"], "reward": v["reward"],
           "reward_std": v["std"], "frac_reward_zero_std": v["zero"], "kl": v["kl"]}  # fmt: skip
    body = ", ".join(f"'{k}': {show(x, '.8g')}" for k, x in row.items() if x != "gone")
    return [
        f"{{{body}, 'epoch': 0.1, 'global_step/max_steps': '{step}/{steps}', 'percentage': '1.0%', 'elapsed_time': '3m 2s'}}"
    ]


def print_verl(step: int, steps: int, v: Values) -> list[str]:
    row = {"actor/entropy": v["entropy"], "actor/kl_loss": v["kl"], "actor/pg_loss": v["loss"], "actor/pg_clipfrac": 0.0008,
           "actor/ppo_kl": 1e-5, "actor/grad_norm": v["grad"], "actor/lr": v["lr"], "critic/score/mean": v["reward"],
           "critic/score/max": v.get("top", 1.0), "critic/score/min": v.get("low", 0.0), "critic/rewards/mean": v["reward"],
           "critic/advantages/max": v["advantage"], "response_length/mean": v["length"], "response_length/max": 2048.0,
           "response_length/clip_ratio": v["cut"], "perf/max_memory_allocated_gb": v["memory"],
           "training/rollout_probs_diff_mean": v["gap"], "timing_s/step": v["time"]}  # fmt: skip
    parts = [
        f"{k}:np.float64({show(x, '.6g')})" if i % 5 == 0 else f"{k}:{show(x, '.6g')}"
        for i, (k, x) in enumerate(row.items())
        if x != "gone"
    ]
    return [f"\x1b[36m(TaskRunner pid=88)\x1b[0m step:{step} - " + " - ".join(parts)]


def print_openrlhf(step: int, steps: int, v: Values) -> list[str]:
    row = {"policy_loss": v["loss"], "actor_lr": v["lr"], "actor_grad_norm": v["grad"], "kl": v["kl"], "reward": v["reward"],
           "group_reward_std": v["std"], "response_length": v["length"], "truncated": v["cut"], "entropy_loss": v["entropy"],
           "vllm_kl": abs(float(str(v["gap"]))) / 20 if v["gap"] != "gone" else 0.0}  # fmt: skip
    return [
        f"(PPOTrainer pid=5512) INFO 04-01 x] ✨ Global step {step}: {{"
        + ", ".join(f"'{k}': {show(x, '.5g')}" for k, x in row.items() if x != "gone")
        + "}"
    ]


def print_nemo(step: int, steps: int, v: Values) -> list[str]:
    gap = float(str(v["gap"])) / 10
    return [f"========================= Step {step}/{steps} =========================", "📊 Training Results:",
            f"  • Loss: {show(v['loss'], '.4f')}", f"  • Generation KL Error: {gap:.4f}", f"  • Avg Reward: {show(v['reward'], '.4f')}",
            f"  • Mean Generation Length: {show(v['length'], '.4f')}", "⏱️  Timing:", f"  • Total step time: {show(v['time'], '.2f')}s",
            "  • policy_training: 10.97s (30.7%)"]  # fmt: skip


def print_slime(step: int, steps: int, v: Values) -> list[str]:
    row = {"train/loss": v["loss"], "train/pg_loss": v["loss"], "train/entropy_loss": v["entropy"], "train/pg_clipfrac": 0.0,
           "train/ppo_kl": 0.0, "train/kl_loss": v["kl"], "train/train_rollout_logprob_abs_diff": v["gap"], "train/grad_norm": v["grad"],
           "train/lr-pg_0": v["lr"], "train/step": step}  # fmt: skip
    roll = {"rollout/raw_reward": v["reward"], "rollout/response_lengths": v["length"], "rollout/truncated": v["cut"]}
    return [f"rollout {step}: " + "{" + ", ".join(f"'{k}': {show(x, '.6g')}" for k, x in roll.items() if x != "gone") + "}",
            f"step {step}: " + "{" + ", ".join(f"'{k}': {show(x, '.6g')}" for k, x in row.items() if x != "gone") + "}"]  # fmt: skip


def print_factory(step: int, steps: int, v: Values) -> list[str]:
    row = {
        "current_steps": step,
        "total_steps": steps,
        "loss": v["loss"],
        "lr": v["lr"],
        "reward": v["reward"],
        "epoch": 0.1,
    }
    body = ", ".join(f'"{k}": {show(x, ".6g")}' for k, x in row.items() if x != "gone").replace(": nan", ": NaN")
    return [f'{{{body}, "percentage": 1.2, "elapsed_time": "0:01:02", "remaining_time": "1:00:00"}}']


def print_plain(step: int, steps: int, v: Values) -> list[str]:
    return [f"iter {step}/{steps} | loss {show(v['loss'], '.5f')} | grad_norm {show(v['grad'], '.4f')} | reward {show(v['reward'], '.4f')}"
            f" | reward_std {show(v['std'], '.4f')} | lr {show(v['lr'], '.3e')}"]  # fmt: skip


def print_megatron(step: int, steps: int, v: Values) -> list[str]:
    loss = "" if v["loss"] == "gone" else f" lm loss: {show(v['loss'], '.6E')} |"
    return [f" [2025-02-02 10:10:10] iteration {step:8d}/{steps:8d} | consumed samples: {step * 64:12d} | elapsed time per iteration (ms): 7613.1 |"
            f" learning rate: {show(v['lr'], '.6E')} | global batch size:    64 |{loss} loss scale: 1.0 | grad norm: {show(v['grad'], '.3f')} |"
            " number of skipped iterations:   0 | number of nan iterations:   0 |"]  # fmt: skip


PRINTERS = {
    "trl": print_trl, "old trl": print_old_trl, "swift": print_swift, "verl": print_verl, "openrlhf": print_openrlhf,
    "nemo": print_nemo, "slime": print_slime, "llama-factory": print_factory, "plain": print_plain, "megatron": print_megatron,
}  # fmt: skip


# ---- faults: each changes the values of one row


def since(share: float, **new: object) -> Fault:
    def change(step: int, steps: int, v: Values) -> None:
        if step > share * steps:
            v.update(new)

    return change


def slide(share: float, **goals: float) -> Fault:
    """Values that move from what they were to a goal, geometrically, from a share of the run to its end."""

    def change(step: int, steps: int, v: Values) -> None:
        part = max(0.0, (step - share * steps) / ((1 - share) * steps))
        for key, goal in goals.items():
            now = float(str(v[key]))
            v[key] = now * (goal / now) ** part if goal > 0 and now > 0 else now + (goal - now) * part

    return change


def lr_stops_falling(step: int, steps: int, v: Values) -> None:
    v["lr"] = 1e-6 * (1 - min(step, steps // 2) / steps)


def linear_decay(step: int, steps: int, v: Values) -> None:
    v["lr"] = 1e-6 * (1 - step / steps)


def cosine_to_floor(step: int, steps: int, v: Values) -> None:
    v["lr"] = 1e-7 + 4.5e-7 * (1 + math.cos(math.pi * min(1, step / (0.8 * steps))))


def hot_then_nan(step: int, steps: int, v: Values) -> None:
    v["lr"] = 5e-4
    v["grad"] = 0.3 * 1.6**step if step < 14 else math.nan
    v["loss"] = 0.02 * step if step < 14 else math.nan


def lr_once(step: int, steps: int, v: Values) -> None:
    if step > steps // 2:
        v.update(lr=0.3, entropy=0.002, reward=0.0, std=0.0, zero=1.0, cut=1.0)


def saturates(step: int, steps: int, v: Values) -> None:
    rise = min(1.0, 0.4 + step / steps)
    v.update(reward=rise * 0.97, std=0.25 * (1 - rise) + 0.04, zero=min(0.8, rise - 0.2))


def noisy_reward(step: int, steps: int, v: Values) -> None:
    v["reward"] = random.Random(step).uniform(0.41, 0.83)


def heavy_tails(step: int, steps: int, v: Values) -> None:
    draw = random.Random(step * 7919 + steps)
    for key, spread in (("grad", 0.6), ("kl", 0.5), ("entropy", 0.08), ("length", 0.15), ("gap", 0.3), ("cut", 0.5)):
        v[key] = float(str(v[key])) * math.exp(draw.gauss(0, spread))
    v["zero"] = draw.choice([0.0, 0.25, 0.5, 0.5, 0.75, 1.0])
    if v["zero"] == 1.0:
        v.update(std=0.0, grad=draw.choice([0.0, 1e-3]))


def one_bad_step(step: int, steps: int, v: Values) -> None:
    if step == steps // 2:
        v.update(kl=math.nan)


def one_zero_group(step: int, steps: int, v: Values) -> None:
    if step % 9 == 4:
        v.update(zero=1.0, std=0.0, grad=0.0008)


def no_kl(step: int, steps: int, v: Values) -> None:
    v.update(kl="gone", loss=0.0)


def huge_norm(step: int, steps: int, v: Values) -> None:
    v["grad"] = 2.1e6 * float(str(v["grad"]))


def slow_eval(step: int, steps: int, v: Values) -> None:
    if step % 5 == 0:
        v["time"] = 310.0


def warm_up(step: int, steps: int, v: Values) -> None:
    v["lr"] = 1e-6 * min(1.0, (step - 1) / 10)
    if step == 1:
        v["grad"] = 0.0


NAN = math.nan
BROKEN: Values = {"loss": NAN, "grad": NAN, "entropy": NAN, "kl": NAN}
SERIES: tuple[tuple[str, str, Fault | None, str], ...] = (
    # what, formats, fault, layer
    ("healthy", "trl|old trl|swift|verl|openrlhf|nemo|slime|llama-factory|plain|megatron", None, "none"),
    ("healthy, saturating", "trl|verl|openrlhf", saturates, "none"),
    ("healthy, noisy reward", "swift|nemo|verl", noisy_reward, "none"),
    ("healthy, kl nan once", "trl|verl", one_bad_step, "none"),
    ("healthy, some dead groups", "trl|swift|plain", one_zero_group, "none"),
    ("healthy, no kl and a loss of 0", "trl|swift|old trl", no_kl, "none"),
    ("healthy, huge norm", "slime|plain|megatron", huge_norm, "none"),
    ("healthy, slow evaluations", "trl|verl", slow_eval, "none"),
    ("healthy, warm-up", "trl|verl|openrlhf", warm_up, "none"),
    ("healthy, decays to zero", "trl|openrlhf|swift", linear_decay, "none"),
    ("healthy, decays to a floor", "trl|slime", cosine_to_floor, "none"),
    ("nan from the first step", "trl|swift|verl|slime|openrlhf", since(0, grad=NAN), "gradient"),
    ("nan later", "trl|old trl|swift|verl|openrlhf|slime|plain", since(0.6, **BROKEN), "gradient"),
    ("loss nan to the end", "nemo|llama-factory", since(0.6, loss=NAN), "gradient"),
    ("loss field vanishes", "megatron", since(0.6, loss="gone", grad=0.7), "gradient"),
    ("gradient field vanishes", "trl|openrlhf|verl", since(0.5, grad="gone"), "gradient"),
    ("reward field vanishes", "old trl|verl", since(0.5, reward="gone", std="gone"), "reward"),
    ("reward nan", "trl|swift|verl|openrlhf", since(0.5, reward=NAN, std=NAN), "reward"),
    ("reward constant", "trl|old trl|plain|openrlhf", since(0.3, reward=0.0, std=0.0, zero=1.0, grad=0.0), "reward"),
    ("reward constant, no spread logged", "verl|nemo|slime|llama-factory", since(0.0, reward=0.0, top=0.0, low=0.0), "reward"),
    ("gradient dead from the start", "trl|swift|verl|openrlhf", since(0, grad=0.0), "gradient"),
    ("gradient dies", "old trl|slime|plain|verl", since(0.6, grad=0.0), "gradient"),
    ("learning rate zero", "trl|openrlhf|slime", since(0, lr=0.0), "optimizer"),
    ("learning rate stops falling", "trl|swift|slime", lr_stops_falling, "optimizer"),
    ("hot, then nan", "trl|plain|openrlhf", hot_then_nan, "optimizer"),
    ("rate of 0.3 at half", "trl|verl", lr_once, "optimizer"),
    ("policy collapses", "trl|verl|slime", slide(0.4, reward=0.002, entropy=0.004, length=40.0), "policy"),
    ("entropy explodes", "verl|trl", slide(0.4, reward=0.005, entropy=7.0), "policy"),
    ("kl runs away", "trl|openrlhf|verl", slide(0.4, kl=9.0, reward=0.05), "policy"),
    ("engine gap grows", "verl|slime|trl", slide(0.4, gap=0.6), "policy"),
    ("engine gap from the start", "nemo|slime", since(0, gap=4.0), "policy"),
    ("length explodes", "verl|trl|swift", slide(0.3, cut=0.97, length=1900.0, reward=0.08), "policy"),
    ("everything cut", "trl|swift", since(0, cut=1.0, reward=0.0, std=0.0, zero=1.0, grad=0.0), "data"),
    ("one-token answers", "old trl|openrlhf|nemo", since(0, length=1.0), "data"),
    ("memory creeps", "verl|swift", slide(0.0, memory=118.0), "memory"),
    ("advantage impossible", "verl", since(0.5, advantage=57.0), "reward"),
)  # fmt: skip


def series_case(form: str, fault: Fault | None, seed: int) -> list[str]:
    steps = 24 + seed % 23
    out: list[str] = []
    for step in range(1, steps + 1):
        values = healthy(step, steps, seed)
        if fault is not None:
            fault(step, steps, values)
        out += PRINTERS[form](step, steps, values)
    if form in ("trl", "old trl", "swift") and seed % 2:
        out.append(
            "{'train_runtime': 812.2, 'train_samples_per_second': 0.6, 'train_steps_per_second': 0.03, 'train_loss': 0.001, 'epoch': 1.0}"
        )
    return out


def texts(file: str = "unseen_lines.txt") -> dict[str, tuple[list[str], str]]:
    out: dict[str, tuple[list[str], str]] = {}
    blocks = (Path(__file__).parent / "data" / file).read_text().split("### ")[1:]
    for block in blocks:
        head, *lines = block.rstrip("\n").split("\n")
        name, _, layer = head.partition(" | ")
        out[name] = (lines, layer)
    return out


CASES: dict[str, tuple[list[str], str]] = {
    f"{form}: {what}": (series_case(form, fault, zlib.crc32(f"{form}{what}".encode()) % 1000), layer)
    for what, forms, fault, layer in SERIES
    for form in forms.split("|")
} | texts()

LATER = texts("blind_lines.txt")
"""Sixty-five more texts, written after the code in two lots and scored once before anything was adjusted to them."""
