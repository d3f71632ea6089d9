"""A plain PyTorch loop with the real agent: rank 1's gradient turns NaN once a sidecar watches. `agent_loop.py OUT`."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

import grpo_sentinel
from grpo_sentinel.daemon.claim import is_claimed
from grpo_sentinel.protocol import run_dir

torch.set_num_threads(1)
RANK = int(os.environ["RANK"])
RINGS = run_dir(Path(os.environ["GRPO_SENTINEL_DIR"]), os.environ["GRPO_SENTINEL_RUN_ID"])

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
watched = [0]
net[2].weight.register_hook(lambda g: g * float("nan") if RANK == 1 and watched[0] > 20 else g)
agent = grpo_sentinel.attach(model=model, optimizer=optimizer)
for step in range(1, 3000):
    watched[0] += is_claimed(RINGS)
    (model(torch.randn(4, 8)) ** 2).mean().backward()
    agent.observe_gradients()
    optimizer.step()
    optimizer.zero_grad()
    verdict = agent.end_step(step)
    if verdict.checkpoint:
        path = Path(sys.argv[1]) / f"checkpoint-{step}"
        if RANK == 0:
            path.mkdir(parents=True)
            save_file(
                {name: tensor.contiguous() for name, tensor in net.state_dict().items()}, path / "model.safetensors"
            )
        agent.checkpoint_saved(path)
    if verdict.halt:
        break
    time.sleep(0.01)  # a step of a real run takes longer
agent.close()
dist.destroy_process_group()
