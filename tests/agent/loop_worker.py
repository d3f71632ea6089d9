"""A plain PyTorch DDP loop on CPU, watched by the agent; faults are put in by options.

python loop_worker.py OUT '{"steps": 6, ...}'
"""

import hashlib
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

OUT, OPTIONS = sys.argv[1], json.loads(sys.argv[2])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if OPTIONS.get("directories"):
    os.environ["GRPO_SENTINEL_DIR"] = OPTIONS["directories"][RANK]
torch.set_num_threads(1)
if WORLD > 1:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))

from grpo_sentinel.agent import attach  # noqa: E402
from grpo_sentinel.agent.null import NullAgent  # noqa: E402
from grpo_sentinel.protocol import run_dir, write_control  # noqa: E402
from grpo_sentinel.records import Action, ControlWord  # noqa: E402


def mine(option):
    """Options given as [rank, ...] speak of one rank."""
    value = OPTIONS.get(option)
    return value if isinstance(value, list) and value[0] == RANK else None


torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model = torch.nn.parallel.DistributedDataParallel(net) if WORLD > 1 else net
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
if mine("local_nan"):
    net[2].weight.register_hook(
        lambda g: torch.full_like(g, float("nan")) if step >= mine("local_nan")[1] else g
    )  # before ours, as a fault of the model itself would be
if mine("absent"):
    agent = NullAgent("absent")
else:
    if mine("ring_is_a_file"):
        Path(OUT, "blocked").write_text("")
        os.environ["GRPO_SENTINEL_DIR"] = str(Path(OUT, "blocked"))
    agent = attach(model=model, optimizer=optimizer, vocab_size=100, group_size=2)
if mine("broken_probe"):
    from grpo_sentinel.agent import observing

    def broken(*args, **kwargs):
        raise RuntimeError("this probe is broken on purpose")

    observing.gradient_probe.observe = broken

data = torch.Generator().manual_seed(RANK)
verdicts, gone, skipped_states = [], 0, []
for step in range(1, OPTIONS.get("steps", 6) + 1):
    ask = OPTIONS.get("ask")
    if ask and ask["rank"] == RANK and ask["step"] == step:
        directory = run_dir(Path(os.environ["GRPO_SENTINEL_DIR"]), "run")
        write_control(
            directory, ControlWord(request_id=3, action=Action[ask["action"]], reason="asked", requested_by="user")
        )
    if mine("vote_breaks_at") and mine("vote_breaks_at")[1] == step:

        class Broken:
            def maximum(self, words):
                raise RuntimeError("the group is gone")

        agent.core._transport = Broken()
    if OPTIONS.get("data"):
        ids = torch.randint(0, 100, (4, 6), generator=data)
        agent.observe_data(input_ids=ids, attention_mask=torch.ones_like(ids))
    for _ in range(OPTIONS.get("accumulation", 1)):
        x = torch.randn(4, 8, generator=data)
        loss = (model(x) ** 2).mean()
        loss.backward()
    if mine("reduced_nan") and mine("reduced_nan")[1] == step:
        net[0].weight.grad[0, 0] = float("nan")
    if mine("reduced_spike") and mine("reduced_spike")[1] == step:
        net[0].weight.grad.mul_(100)
    if OPTIONS.get("observe_gradients", True):
        agent.observe_gradients()
    before = [p.detach().clone() for p in net.parameters()]
    moments = [s["exp_avg"].clone() for s in optimizer.state.values()]
    if not (mine("scaler_skips_at") and mine("scaler_skips_at")[1] == step):
        optimizer.step()
    optimizer.zero_grad()
    verdict = agent.end_step()
    verdicts.append([verdict.halt, verdict.checkpoint, verdict.skipped, verdict.request_id])
    if verdict.skipped:
        same = all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
        kept = [s["exp_avg"] for s in optimizer.state.values()]
        skipped_states.append([step, same and all(torch.equal(a, b) for a, b in zip(moments, kept, strict=False))])
    if verdict.checkpoint:
        path = Path(OUT, f"checkpoint-{step}-{RANK}.pt")
        torch.save(net.state_dict(), path)
        agent.checkpoint_saved(path)
    if verdict.halt:
        break
agent.close()
weights = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
result = {
    "active": agent.active,
    "voting": getattr(getattr(agent, "core", None), "voting", None),
    "why": getattr(getattr(agent, "core", None), "why_off", ""),
    "last_step": step,
    "verdicts": verdicts,
    "skipped": skipped_states,
    "weights": hashlib.sha256(weights).hexdigest(),
    "finite": all(bool(torch.isfinite(p).all()) for p in net.parameters()),
    "probes_off": sorted(agent.guard.off) if agent.active else [],
}
with open(os.path.join(OUT, f"rank{RANK}.json"), "w") as out:
    json.dump(result, out)
if WORLD > 1:
    dist.barrier()
    dist.destroy_process_group()
