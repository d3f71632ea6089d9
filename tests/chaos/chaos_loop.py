"""A plain loop of two ranks with every phase of a GRPO step, rotation of checkpoints, and places where faults can act."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
from chaos_faults import Fault
from chaos_plan import Case
from safetensors.torch import save

import grpo_sentinel
from grpo_sentinel.daemon.claim import is_claimed
from grpo_sentinel.protocol import run_dir

STEPS = 40
LONG = 600  # of a run that only a halt ends
KEEP = 2


def note_saved(folder: Path, place: Path) -> None:
    """Say that a checkpoint is whole, and what its weights are: what the judge holds against the sentinel's word."""
    weights = hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest()
    with (folder / "saved.jsonl").open("a") as log:
        log.write(json.dumps({"name": place.name, "sha256": weights}) + "\n")


def rotate(out: Path) -> None:
    """Delete all but the newest checkpoints, as `save_total_limit` does."""
    found = sorted(out.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    for old in found[:-KEEP]:
        shutil.rmtree(old)


def wait_for_the_sidecar() -> None:
    """A run of a few seconds would be over before the sidecar looks; real ones are not."""
    rings = run_dir(Path(os.environ["GRPO_SENTINEL_DIR"]), os.environ["GRPO_SENTINEL_RUN_ID"])
    limit = time.monotonic() + 20
    while not is_claimed(rings) and time.monotonic() < limit:
        time.sleep(0.02)
    dist.barrier()


def run(case: Case, folder: Path, out: Path) -> None:
    """One rank of one run; writes rank<R>.json at its end."""
    rank = dist.get_rank()
    torch.manual_seed(case.number)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    fault = Fault(case, rank, folder)
    net[2].weight.register_hook(lambda g: g * float("nan") if fault.poisoned else g)
    agent = grpo_sentinel.attach(model=model, optimizer=optimizer, output_dir=str(out))
    torch.manual_seed(100 + rank)
    wait_for_the_sidecar()

    def write(step: int) -> None:
        place = out / f"checkpoint-{step}"
        if rank == 0:
            fault.fill_the_disk(out, step)
            with agent.phase("checkpoint"):
                place.mkdir(exist_ok=True)
                weights = save({name: tensor.contiguous() for name, tensor in net.state_dict().items()})

                def half() -> None:
                    (place / "model.safetensors").write_bytes(weights[: len(weights) // 2])

                fault.at("save", step, half)
                (place / "model.safetensors").write_bytes(weights)
                torch.save(optimizer.state_dict(), place / "optimizer.pt")
                (place / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
                note_saved(folder, place)
                rotate(out)
        agent.checkpoint_saved(place)

    halted_at = 0
    steps = LONG if case.fault == "nan" else STEPS
    for step in range(1, steps + 1):
        with agent.phase("generate"):
            fault.at("generate", step)
            batch = torch.randn(8, 32)
            time.sleep(0.02)
        with agent.phase("reward"):
            fault.at("reward", step)
            rewards = batch.sum(1)
            time.sleep(0.04)
            agent.observe_rewards({"sum": rewards.tolist()}, group_size=4)
        with agent.phase("forward"):
            fault.at("forward", step)
            time.sleep(0.02)
            loss = (model(batch) ** 2).mean()
        with agent.phase("backward"):
            fault.at("backward", step)
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        agent.observe_gradients(norm, clip_limit=1.0)
        fault.at("optimizer", step)
        optimizer.step()
        optimizer.zero_grad()
        verdict = agent.end_step(step)
        if verdict.checkpoint or step % 2 == 0:
            write(step)
        if verdict.halt:
            halted_at = step
            break
    agent.close()
    (folder / f"rank{rank}.json").write_text(json.dumps({"step": step, "halted_at": halted_at}))
