"""Realistic logs with known causes, in the formats of the trainers: each function gives the lines of one log."""

from __future__ import annotations

import random

ANSI = "\x1b[36m{}\x1b[0m"


def noise(seed: int):
    draw = random.Random(seed)
    return lambda level, spread=0.1: level * (1 + spread * draw.gauss(0, 1))


def verl(step: int, **more: object) -> str:
    n = noise(step)
    row = {
        "global_seqlen/min": f"{n(6456):.3f}", "actor/entropy": f"{n(0.42):.6f}", "actor/kl_loss": f"{n(0.002):.6f}",
        "actor/pg_loss": f"{n(0.01, 1):.6f}", "actor/pg_clipfrac": "0.000", "actor/ppo_kl": f"{n(0.0001, 0.5):.6f}",
        "actor/grad_norm": f"{n(0.31):.6f}", "actor/lr": "0.000", "critic/score/mean": f"{n(0.55):.4f}",
        "critic/score/max": "1.0", "critic/advantages/max": "1.789", "critic/advantages/min": "-1.788",
        "response_length/mean": f"{n(1267, 0.05):.3f}", "response_length/max": "3072.0",
        "response_length/clip_ratio": f"{abs(n(0.04)):.4f}", "perf/max_memory_allocated_gb": f"{n(54, 0.01):.3f}",
        "timing_s/step": f"{n(61):.3f}",
    }  # fmt: skip
    row.update({key: str(value) for key, value in more.items()})
    return f"(TaskRunner pid=4711) step:{step} - " + " - ".join(f"{key}:{value}" for key, value in row.items())


def trl(step: int, **more: object) -> list[str]:
    n = noise(step + 999)
    row = {
        "loss": 0.0, "grad_norm": round(n(0.09), 4), "learning_rate": 9e-07, "num_tokens": 12511.0 * step,
        "completions/mean_length": round(n(113, 0.05), 1), "completions/clipped_ratio": 0.1,
        "rewards/accuracy/mean": round(n(0.5), 3), "rewards/accuracy/std": 0.4, "reward": round(n(0.5), 3),
        "reward_std": round(n(0.3), 3), "frac_reward_zero_std": 0.25, "kl": round(n(0.006), 5), "entropy": round(n(0.43), 3),
        "step_time": round(n(23), 2), "epoch": 0.01 * step,
    }  # fmt: skip
    row.update(more)
    body = ", ".join(f"'{key}': {value}" for key, value in row.items())
    return [f" {step}%|▏         | {step}/400 [03:44<2:26:29, 22.25s/it]", "{" + body + "}"]


def nemo(step: int, **more: object) -> list[str]:
    n = noise(step + 77)
    row = {"Loss": f"{n(0.01, 1):.4f}", "Generation KL Error": f"{n(0.001):.4f}", "Avg Reward": f"{n(0.6):.4f}",
           "Mean Generation Length": f"{n(201):.4f}"}  # fmt: skip
    row.update({key: str(value) for key, value in more.items()})
    return [
        f"========================= Step {step}/100 =========================",
        "📊 Training Results:", *(f"  • {key}: {value}" for key, value in row.items()),
        "⏱️  Timing:", "  • Total step time: 35.70s", "  • policy_training: 10.97s (30.7%)",
    ]  # fmt: skip


def megatron(step: int, loss: str | None = "0.7334521", grad: str = "0.752") -> str:
    middle = f" lm loss: {loss} |" if loss is not None else ""
    return (
        f" iteration     {step}/    8000 | consumed samples: {step * 64} | elapsed time per iteration (ms): 7613.1 | "
        f"learning rate: 6.680E-06 | global batch size: 64 |{middle} loss scale: 1.0 | grad norm: {grad} | "
        "number of skipped iterations: 0 | number of nan iterations: 0 |"
    )


def openrlhf(step: int, **more: object) -> str:
    n = noise(step + 5)
    row = {"policy_loss": round(n(0.02, 0.5), 4), "kl": round(n(0.004), 5), "reward": round(n(0.4), 3),
           "response_length": round(n(512), 1), "actor_lr": 5e-7, "group_reward_std": round(n(0.2), 3)}  # fmt: skip
    row.update(more)
    return f"(PPOTrainer pid=88) INFO 02-11 x] ✨ Global step {step}: {row}"


def slime(step: int, **more: object) -> str:
    n = noise(step + 31)
    row = {"train/loss": round(n(0.1), 4), "train/entropy_loss": round(n(0.61), 4), "train/pg_clipfrac": 0.0,
           "train/ppo_kl": 0.0, "train/train_rollout_logprob_abs_diff": round(n(0.012), 4),
           "train/grad_norm": round(n(2955012562.8), 1), "train/lr-pg_0": 1e-06, "train/step": step}  # fmt: skip
    row.update(more)
    return f"step {step}: {row}"


def swift(step: int, **more: object) -> str:
    n = noise(step + 3)
    row = {"loss": 0.0, "grad_norm": round(n(0.03), 5), "learning_rate": 1e-06, "memory(GiB)": 61.2, "reward": round(n(0.7), 3),
           "reward_std": round(n(0.2), 3), "frac_reward_zero_std": 0.3, "kl": round(n(0.001), 5),
           "global_step/max_steps": f"{step}/200", "elapsed_time": "1m 35s"}  # fmt: skip
    row.update(more)
    return str(row)


def torchrun_reward_keyerror() -> list[str]:
    """Two ranks interleaved; rank 1's reward function raises, rank 0 dies of the broken connection, then torchrun."""
    out = [line for step in range(1, 5) for line in trl(step)]
    out += [
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/opt/app/train.py", line 88, in <module>',
        "[rank0]:[W1130 10:11:12.1 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed",
        "[rank1]:     trainer.train()",
        '[rank1]:   File "/opt/venv/lib/trl/trainer/grpo_trainer.py", line 1204, in _calculate_rewards',
        "[rank1]:     output_reward_func = reward_func(prompts=prompts, completions=completions, **reward_kwargs)",
        '[rank1]:   File "/opt/app/rewards.py", line 31, in accuracy_reward_fn',
        "[rank1]:     gold = kwargs['answer'][i]",
        "[rank1]: KeyError: 'answer'",
        "[rank0]: Traceback (most recent call last):",
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or "
        "there was a network error, NCCL version 2.21.5",
        "W1130 10:11:15.0 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4242 closing signal SIGTERM",
        "E1130 10:11:16.0 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 4243)",
    ]  # fmt: skip
    return out


def desync() -> list[str]:
    head = "[rank{0}]:[E424 01:17:25.03 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
    tail = "WorkNCCL(SeqNum=912, OpType={1}, NumelIn={2}, NumelOut={2}, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
    return [line for step in range(1, 4) for line in trl(step)] + [
        (head + tail).format(0, "ALLREDUCE", 1048576),
        (head + tail).format(1, "BROADCAST", 12),
    ]


def absent_rank() -> list[str]:
    text = (
        "[rank{0}]:[E424 01:17:25.03 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=49296, OpType=_ALLGATHER_BASE, NumelIn=192, NumelOut=768, Timeout(ms)=1800000) ran for 1800065 "
        "milliseconds before timing out."
    )
    return [verl(step) for step in range(1, 9)] + [text.format(rank) for rank in (0, 1, 3)]


def scaler_death() -> list[str]:
    text = "[2026-02-07 22:16:00,018] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}"
    counts = "[2026-02-07 22:16:00,100] [INFO] [logging.py:96:log_dist] [Rank 0] step={0}, skipped={1}, lr=[1e-06], mom=[(0.9, 0.95)]"
    out = []
    for step in range(10, 60, 10):
        out.append(text.format(1, 1))
        out.append(counts.format(step, step - 2))
    return out


def scale_search() -> list[str]:
    text = "[deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}"
    return [text.format(2**n, 2 ** (n - 1)) for n in range(32, 26, -1)] + [swift(step) for step in range(1, 12)]


def device_assert() -> list[str]:
    flood = [
        f"/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1308: indexSelectLargeIndex: block: [{b},0,0], thread: [{t},0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed."
        for b in range(12)
        for t in range(32)
    ]
    end = [
        "[rank2]: RuntimeError: CUDA error: device-side assert triggered",
        "[rank2]:[E ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 2] Process group watchdog thread terminated with "
        "exception: CUDA error: device-side assert triggered",
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited",
    ]
    return [line for step in range(1, 4) for line in trl(step)] + flood + end


def residue_then_oom() -> list[str]:
    out: list[str] = []
    for step, used in enumerate((4.11, 11.57, 17.9, 25.0), 1):
        out += nemo(step)
        out.append(f"(VllmWorker pid=3) INFO Sleep mode freed 43.82 GiB memory, {used} GiB memory is still in use.")
    out.append(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.42 GiB. GPU 4 has a total capacity of 79.10 GiB of "
        "which 1.05 GiB is free."
    )
    return out


def killed_only() -> list[str]:
    return [line for step in range(1, 7) for line in trl(step)] + [
        "E1130 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 31) of binary: python",
    ]


def kernel_oom() -> list[str]:
    return [
        *killed_only(),
        "[81234.1] Memory cgroup out of memory: Killed process 31 (python) total-vm:91234kB, anon-rss:81234kB",
    ]


def illegal_access_only() -> list[str]:
    return [verl(step) for step in range(1, 5)] + [
        ANSI.format("(WorkerDict pid=9, ip=10.0.0.3)")
        + " RuntimeError: CUDA error: an illegal memory access was encountered",
        "CUDA kernel errors might be asynchronously reported at some other API call",
    ]


def ray_glue() -> list[str]:
    """Healthy verl with everything that glues and tears: ANSI, np.float64, repeated marks, a torn last line."""
    out = []
    for step in range(1, 15):
        text = verl(step, **{"critic/score/mean": f"np.float64({0.5 + step / 100})"})
        out.append(
            ANSI.format("(TaskRunner pid=1)")
            + text.replace("(TaskRunner pid=4711)", "")
            + " [repeated 5x across cluster]"
        )
        if step == 7:
            out.append(f"(TaskRunner pid=1) step:{step} - val/test_score/gsm8k:0.61")
            out.append("(raylet) Worker exit type: SYSTEM_ERROR is only mentioned in the documentation")
    out.append(verl(15)[:90])
    return out


def late_nan(start: int = 23) -> list[str]:
    bad = {
        "actor/grad_norm": "nan",
        "actor/pg_loss": "nan",
        "actor/kl_loss": "nan",
        "actor/entropy": "nan",
        "critic/score/mean": "0.0",
    }
    out = []
    for step in range(1, 31):
        out.append(verl(step, **(bad if step >= start else {})))
        if step >= start:
            out.append("(WorkerDict pid=3) WARN: grad_norm is not finite: nan")
    return out


def weights_not_loaded() -> list[str]:
    return [f"step {step}/100  loss={11.9311 + step * 1e-4:.4f}  grad_norm=0.0  lr=1.00e-06" for step in range(1, 8)]


def sync_broken() -> list[str]:
    return [
        line for step in range(1, 9) for line in nemo(step, **({"Generation KL Error": "0.7912"} if step > 1 else {}))
    ]


def length_explodes() -> list[str]:
    out = []
    for step in range(1, 41):
        cut = min(0.98, 0.03 + max(0, step - 12) * 0.05)
        out.append(
            verl(step, **{"response_length/clip_ratio": f"{cut:.3f}", "critic/score/mean": f"{0.55 * (1 - cut):.3f}"})
        )
    return out


def lr_runaway() -> list[str]:
    return [openrlhf(step, **({"actor_lr": 0.05} if step > 6 else {})) for step in range(1, 12)]


def disk_full() -> list[str]:
    return [openrlhf(step) for step in range(1, 9)] + [
        "ray.exceptions.RayTaskError(SafetensorError): safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: 'No space left on device' })",
    ]


def fell_off_the_bus() -> list[str]:
    return [slime(step) for step in range(1, 6)] + [
        "NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "[rank3]: RuntimeError: CUDA error: unspecified launch failure",
        "[rank0]:[E1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.",
    ]  # fmt: skip


def collapsed() -> list[str]:
    out = []
    for step in range(1, 61):
        left = max(0.0, min(1.0, (40 - step) / 20))  # from step 20 to step 40
        out.append(
            slime(step, **{"train/entropy_loss": round(0.02 + 0.6 * left, 4), "reward": round(0.01 + 0.6 * left, 4)})
        )
    return out


def missing_module() -> list[str]:
    return ["Traceback (most recent call last):", '  File "/opt/app/main.py", line 3, in <module>',
            "ModuleNotFoundError: No module named 'flash_attn'"]  # fmt: skip


def healthy_trl_zero_loss() -> list[str]:
    out = [line for step in range(1, 31) for line in trl(step, **({"kl": "nan"} if step == 9 else {}))]
    return [*out, "{'train_runtime': 9199.6, 'train_samples_per_second': 0.176, 'train_loss': 1.3e-09, 'epoch': 1.0}",
            "[rank0]:[W530 12:00:00 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed"]  # fmt: skip


LOGS = {
    # name: (lines, layer, cause, step, rank); None: not checked
    "torchrun, reward function raises": (torchrun_reward_keyerror, "reward", "reward_function_raised", None, 1),
    "ranks call different collectives": (desync, "communication", "collective_desync", None, None),
    "one of four ranks never comes": (absent_rank, "communication", "collective_timeout", None, 2),
    "loss scale at one for ever": (scaler_death, "gradient", None, None, None),
    "search for a loss scale": (scale_search, "none", None, None, None),
    "token outside the vocabulary": (device_assert, "data", "index_assert", None, None),
    "engine keeps memory asleep": (residue_then_oom, "memory", "sleep_residue_growth", None, None),
    "killed, by whom unknown": (killed_only, "undetermined", "exit_minus_9", None, 2),
    "killed by the kernel": (kernel_oom, "memory", "host_oom_cgroup", None, None),
    "illegal access alone": (illegal_access_only, "undetermined", "illegal_access", None, None),
    "healthy verl, glued and torn": (ray_glue, "none", None, None, None),
    "NaN from step 23 on": (late_nan, "gradient", "nonfinite_gradient", 22, None),
    "weights never loaded": (weights_not_loaded, "policy", "uniform_logits", 1, None),
    "weight sync broken after step 1": (sync_broken, "policy", "rollout_mismatch", 2, None),
    "length explodes": (length_explodes, "policy", None, None, None),
    "learning rate runs away": (lr_runaway, "optimizer", "huge_learning_rate", 7, None),
    "disk full at a checkpoint": (disk_full, "memory", "disk_full", None, None),
    "GPU falls off the bus": (fell_off_the_bus, "device", "fallen_off_bus", None, None),
    "policy collapses": (collapsed, "policy", "policy_collapsed", None, None),
    "module missing": (missing_module, "tooling", "import_error", None, None),
    "healthy TRL with a loss of zero": (healthy_trl_zero_loss, "none", None, None, None),
    "healthy Megatron": (lambda: [megatron(s, f"{0.7 + s / 1e5:.6f}") for s in range(3380, 3400)], "none", None, None, None),
    "Megatron leaves the loss out": (lambda: [megatron(s, None if s > 3384 else "0.71", "0.75") for s in range(3380, 3390)], "gradient", "loss_vanished", 3385, None),
    "healthy NeMo-RL": (lambda: [line for s in range(1, 20) for line in nemo(s)], "none", None, None, None),
    "healthy slime with a huge constant norm": (lambda: [slime(s) for s in range(1, 30)], "none", None, None, None),
    "healthy OpenRLHF": (lambda: [openrlhf(s) for s in range(1, 30)], "none", None, None, None),
    "healthy swift": (lambda: [swift(s) for s in range(1, 30)], "none", None, None, None),
    "swift, every completion scores the same": (lambda: [swift(s, reward=0.0, reward_std=0.0, frac_reward_zero_std=1.0) for s in range(1, 9)], "reward", "constant_reward", 1, None),
    "swift, gradient disconnected": (lambda: [swift(s, grad_norm=0.0, kl=0.0) for s in range(1, 9)], "gradient", "disconnected_gradient", 1, None),
    "TRL, gradient dies at step 20": (lambda: [line for s in range(1, 31) for line in trl(s, **({"grad_norm": 0.0} if s >= 20 else {}))], "gradient", "gradient_died", 20, None),
}  # fmt: skip
