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
os._exit(0)  # torch's own threads of gloo abort now and then when the interpreter tears them down
