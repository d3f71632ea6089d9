"""Two ranks of DDP; rank 0 alone saves and reports every step, before its verdict: `own_saves_loop.py OUT`.

With `--deaf` the loop does not look at its verdict.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import grpo_sentinel

torch.set_num_threads(1)
out, deaf = Path(sys.argv[1]), "--deaf" in sys.argv
dist.init_process_group("gloo")
rank = dist.get_rank()
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
agent = grpo_sentinel.attach(model=net, optimizer=optimizer, output_dir=str(out))


def save(step: int) -> None:
    if rank == 0:
        torch.save({"model": net.module.state_dict()}, out / f"checkpoint_{step}.pt")
        agent.checkpoint_saved(out / f"checkpoint_{step}.pt")


left = 20  # steps that a deaf loop makes with the halt
for step in range(1, 2000):
    time.sleep(0.02)
    (net(torch.randn(4, 8)) ** 2).mean().backward()
    agent.observe_gradients()
    optimizer.step()
    optimizer.zero_grad()
    save(step)
    verdict = agent.end_step(step)
    if deaf:
        left = left - 1 if verdict.halt else left
        if not left:
            break
        continue
    if verdict.checkpoint:
        save(step)
    if verdict.halt:
        (out / f"rank{rank}").write_text(str(step))
        break
agent.close()
dist.barrier()
dist.destroy_process_group()
