"""DeepSpeed engines on the CPU, watched by the agent: one ZeRO stage after the other, with faults.

python deepspeed_worker.py SCENARIOS.json        (see `ranks.Scenarios`)
"""

import hashlib
import json
import logging
import os
import sys
from pathlib import Path

import deepspeed
import torch
from scenarios import each_scenario

from grpo_sentinel.agent import attach

RANK = int(os.environ["RANK"])
torch.set_num_threads(1)
logging.getLogger("DeepSpeed").setLevel(logging.ERROR)


def run(out, options):
    if options.get("settings"):
        os.environ["GRPO_SENTINEL_SETTINGS"] = json.dumps(options["settings"])
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    groups = [
        {"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": options.get("accumulation", 1),
        "gradient_clipping": 0.5,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": options["stage"]},
        "steps_per_print": 1000,
        "bf16": {"enabled": options.get("bf16", False)},
        "fp16": {
            "enabled": options.get("fp16", False),
            "initial_scale_power": 8,
            "loss_scale_window": 2,
            "hysteresis": 1,
            "loss_scale": options.get("loss_scale", 0),
        },
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(groups, lr=0.01), config=config)
    agent = attach(engine, vocab_size=100, group_size=2)
    generator = torch.Generator().manual_seed(RANK)
    step, verdicts, norms = 0, [], []

    def spoil(gradient):
        return torch.full_like(gradient, float("nan")) if options.get("local_nan") == [RANK, step] else gradient

    net[2].weight.register_hook(spoil)
    for step in range(1, options.get("steps", 5) + 1):
        for _ in range(options.get("accumulation", 1)):
            x = torch.randn(4, 8, generator=generator)
            dtype = torch.bfloat16 if options.get("bf16") else torch.float16 if options.get("fp16") else torch.float32
            loss = (engine(x.to(dtype)) ** 2).mean()
            if options.get("spike") == step:
                loss = loss * 1e4
            agent.observe_policy(loss=loss)
            engine.backward(loss)
            engine.step()
        norm = engine.get_global_grad_norm()
        norms.append(None if norm is None else float(norm))
        verdicts.append(agent.end_step().skipped)
    agent.close()
    weights = b"".join(p.detach().float().numpy().tobytes() for p in whole(engine))
    return {
        "verdicts": verdicts,
        "norms": norms,
        "weights": hashlib.sha256(weights).hexdigest(),
        "finite": all(bool(torch.isfinite(p).all()) for p in whole(engine)),
        "probes_off": agent.guard.off,
        "skipped_steps": engine.skipped_steps,
        "scale": float(getattr(engine.optimizer, "loss_scale", 1.0)),
    }


def whole(engine):
    if engine.zero_optimization_stage() < 3:
        return list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return [p.detach().clone() for p in engine.module.parameters()]


deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = (
    False  # or a compiler runs, behind a lock file that a kill leaves
)
accelerator = deepspeed.accelerator.get_accelerator()
accelerator.is_fp16_supported = lambda: True  # slow on a CPU without instructions for it, and otherwise the same
accelerator.supported_dtypes = lambda: [torch.float32, torch.bfloat16, torch.float16]
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
for out, options in each_scenario(sys.argv[1], RANK):
    (Path(out) / f"rank{RANK}.json").write_text(json.dumps(run(out, options)))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
