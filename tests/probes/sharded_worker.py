"""One rank of a two-rank job on the CPU: trains two steps under one engine and prints what the probes saw as JSON."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from grpo_sentinel.agent.probes import gradient
from grpo_sentinel.agent.probes.local_watch import LocalWatch
from grpo_sentinel.agent.probes.optimizer import OptimizerProbe
from grpo_sentinel.agent.probes.sources import deepspeed_gradients
from grpo_sentinel.agent.readback import Readback


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 33), nn.Linear(33, 5), nn.Linear(5, 3))


def wrap(mode, model):
    if mode == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if mode == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy = ModuleWrapPolicy({nn.Linear})
        return FSDP(model, device_id=torch.device("cpu"), auto_wrap_policy=policy, use_orig_params=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def harvest(*packs):
    readback = Readback()
    for pack in packs:
        readback.add(pack)
    return readback.harvest()


def plain(mode):
    dist.init_process_group("gloo")
    wrapped = wrap(mode, build())
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    watch, local, out = OptimizerProbe(replicated=mode == "ddp"), LocalWatch(), []
    local.arm(wrapped.named_parameters())
    for step in (1, 2):
        torch.manual_seed(100 * step + dist.get_rank())
        loss = wrapped(torch.randn(4, 7)).square().mean()
        if step == 2 and dist.get_rank() == 1:
            loss = loss * float("nan")
        loss.backward()
        own = local.pack()
        pack = gradient.observe(wrapped.named_parameters(), sharded=None if mode != "fsdp1" else True, clip_limit=1.0)
        clip = wrapped.clip_grad_norm_ if mode == "fsdp1" else lambda limit: nn.utils.clip_grad_norm_(wrapped.parameters(), limit)
        total = clip(1.0)
        engine = float(total.full_tensor() if hasattr(total, "full_tensor") else total)
        watch.before_step(optimizer)
        if step == 1:
            optimizer.step()
        after = watch.after_step(optimizer, named_parameters=list(wrapped.named_parameters()))
        optimizer.zero_grad()
        report(step, engine, harvest(pack, after, own), out)
    return out


def zero(stage):
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles one, minutes long or in vain
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    out = []
    for step in (1, 2):
        torch.manual_seed(100 * step + dist.get_rank())
        loss = engine(torch.randn(4, 7)).square().mean()
        if step == 2 and dist.get_rank() == 1:
            loss = loss * float("nan")
        engine.backward(loss)
        found = harvest(gradient.observe_tensors(deepspeed_gradients(engine, engine.module.named_parameters()), sharded=True))
        engine.step()
        report(step, float(engine.get_global_grad_norm()), found, out)
    return out


def report(step, engine, found, out):
    names = {where: found.names_at(where) for where in ("after_reduce", "before_reduce", "weights")}
    values = {name: repr(value) for name, value in found.values.items()}
    out.append({"step": step, "rank": dist.get_rank(), "engine": repr(engine), "values": values, "names": names})


if __name__ == "__main__":
    mode = sys.argv[1]
    lines = zero(int(mode[-1])) if mode.startswith("zero") else plain(mode)
    for line in lines:
        # one write: two ranks share this pipe, and what print writes in pieces can be torn apart
        os.write(1, f"RESULT {json.dumps(line)}\n".encode())
    dist.barrier()  # a rank that leaves while the other still talks to it takes it down
    os._exit(0)  # torch's own threads of gloo and DDP abort now and then when the interpreter tears them down
