"""A plain PyTorch loop with the real agent and made-up rewards: `rewards_loop.py OUT FLAG`.

Once the file FLAG is there, every group of rank 1 gets equal rewards, and rank 0 is as healthy as before.
"""

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

torch.set_num_threads(1)
RANK, OUT, FLAG = int(os.environ["RANK"]), Path(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
agent = grpo_sentinel.attach(model=model, optimizer=optimizer)
for step in range(1, 10_000):
    dead = RANK == 1 and FLAG.exists()
    rewards = torch.ones(8) if dead else torch.tensor([0.0, 1.0, 0.2, 0.8] * 2) + step % 3 * 0.1
    agent.observe_rewards({"accuracy": rewards}, group_size=4)
    (model(torch.randn(4, 8)) ** 2).mean().backward()
    agent.observe_gradients()
    optimizer.step()
    optimizer.zero_grad()
    verdict = agent.end_step(step)
    if verdict.checkpoint:
        path = OUT / f"checkpoint-{step}"
        if RANK == 0:
            path.mkdir(parents=True)
            save_file(
                {name: tensor.contiguous() for name, tensor in net.state_dict().items()}, path / "model.safetensors"
            )
        agent.checkpoint_saved(path)
    if verdict.halt:
        break
    time.sleep(0.02)  # a step of a real run takes longer
agent.close()
dist.destroy_process_group()
