"""Two ranks of a plain loop; at step 5 rank 1 stays in its reward and rank 0 waits in the vote. Ends by SIGTERM."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

import grpo_sentinel

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=120))
rank = dist.get_rank()
net = torch.nn.Linear(8, 1)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
agent = grpo_sentinel.attach(model=model, optimizer=optimizer)
for step in range(1, 7):
    if step == 5:
        prefix = os.environ.get("TORCH_FR_DUMP_TEMP_FILE")
        if prefix and rank == 0:  # what torch's watchdog does at a timeout of NCCL
            Path(f"{prefix}0").write_bytes(_dump_fr_trace())
        if rank == 1:
            with agent.phase("reward"):
                time.sleep(600)
    model(torch.randn(4, 8)).square().mean().backward()
    agent.observe_gradients()
    optimizer.step()
    optimizer.zero_grad()
    agent.end_step(step)
