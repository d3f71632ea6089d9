"""A rank of a job whose collectives give up after sixteen seconds; rank 1 has no agent and goes straight on."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from grpo_sentinel.agent import attach

dist.init_process_group("gloo", timeout=timedelta(seconds=16))
if dist.get_rank() == 0:
    model = torch.nn.Linear(2, 2)
    attach(model=model, optimizer=torch.optim.SGD(model.parameters())).close()
dist.all_reduce(torch.ones(1))
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # the groups have been taken down; torch's own threads abort now and then in the interpreter's last moments
