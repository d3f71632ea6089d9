"""Plain PyTorch loops on the CPU, watched by the agent, one scenario after the other; options put faults in.

python loop_worker.py SCENARIOS.json        (see `ranks.run_scenarios`)
"""

import hashlib
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from scenarios import each_scenario

from grpo_sentinel.agent import attach, observing
from grpo_sentinel.agent.null import NullAgent
from grpo_sentinel.protocol import run_dir, write_control
from grpo_sentinel.records import Action, ControlWord

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
OBSERVE = observing.gradient_probe.observe
torch.set_num_threads(1)


class Broken:
    def maximum(self, words):
        raise RuntimeError("the group is gone")


class Loop:
    """One scenario: a small model, trained for some steps."""

    def __init__(self, out, options):
        self.out, self.options = out, options
        if options.get("directories"):
            os.environ["GRPO_SENTINEL_DIR"] = options["directories"][RANK]
        settings = options.get("settings")
        if options.get("rank_settings", [None])[0] == RANK:
            settings = options["rank_settings"][1]
        if settings:
            os.environ["GRPO_SENTINEL_SETTINGS"] = json.dumps(settings)
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.model = self.parallel()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda done: 1.0 / (1 + done))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if options.get("scaler") else None
        self.step = self.micro = 0
        self.data = torch.Generator().manual_seed(RANK)
        self.verdicts, self.skipped = [], []

    def mine(self, option):
        """Options given as [rank, ...] speak of one rank; [rank, step, ...] of one step as well."""
        value = self.options.get(option)
        return value if isinstance(value, list) and value[0] == RANK else None

    def now(self, option):
        value = self.mine(option)
        return value is not None and value[1] == self.step

    def parallel(self):
        kind = self.options.get("parallel", "ddp" if WORLD > 1 else "none")
        if kind == "ddp":
            return torch.nn.parallel.DistributedDataParallel(self.net)
        if kind == "fsdp1":
            from torch.distributed.fsdp import FullyShardedDataParallel

            return FullyShardedDataParallel(self.net, use_orig_params=True, device_id=torch.device("cpu"))
        if kind == "fsdp2":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            return fully_shard(self.net, mesh=init_device_mesh("cpu", (WORLD,)))
        return self.net

    def begin(self):
        if self.mine("local_nan"):  # before ours, as a fault of the model itself would be
            begin = self.mine("local_nan")[1]
            self.net[2].weight.register_hook(lambda g: torch.full_like(g, float("nan")) if self.step >= begin else g)
        if self.mine("local_spike"):
            spikes = self.mine("local_spike")[1]
            spoiled = lambda g: g * 1000 if [self.step, self.micro] in spikes else g  # noqa: E731
            self.net[2].weight.register_hook(spoiled)
        if self.mine("absent"):
            return NullAgent("absent")
        if self.mine("ring_is_a_file"):
            Path(self.out, "blocked").write_text("")
            os.environ["GRPO_SENTINEL_DIR"] = str(Path(self.out, "blocked"))
        agent = attach(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler if self.options.get("schedule") else None,
            vocab_size=100,
            group_size=2,
            max_grad_norm=self.options.get("clip"),
        )
        if self.scaler is not None:
            agent.observe_optimizer(scaler=self.scaler)
        return agent

    def run(self):
        agent = self.agent = self.begin()
        if self.mine("broken_probe"):

            def broken(*args, **kwargs):
                raise RuntimeError("this probe is broken on purpose")

            observing.gradient_probe.observe = broken
        for step in range(1, self.options.get("steps", 6) + 1):
            self.step = step
            verdict = self.one_step(agent)
            if verdict.halt:
                break
        agent.close()
        observing.gradient_probe.observe = OBSERVE
        return self.result()

    def one_step(self, agent):
        self.ask()
        if self.now("vote_breaks_at"):
            agent.core._transport = Broken()
        if self.now("sleeps"):
            time.sleep(1)
        if self.options.get("data"):
            ids = torch.randint(0, 100, (4, 6), generator=self.data)
            agent.observe_data(input_ids=ids, attention_mask=torch.ones_like(ids))
        self.backward(agent)
        norm = self.spoil_and_clip(agent)
        if self.options.get("observe_gradients", True):
            agent.observe_gradients(norm)
        before = [p.detach().clone() for p in self.model.parameters()]
        moments = [s["exp_avg"].clone() for s in self.optimizer.state.values()]
        self.update(agent)
        verdict = agent.end_step()
        self.verdicts.append([verdict.halt, verdict.checkpoint, verdict.skipped, verdict.request_id])
        if verdict.skipped:
            same = all(_equal(a, b) for a, b in zip(before, self.model.parameters(), strict=True))
            kept = [s["exp_avg"] for s in self.optimizer.state.values()]
            self.skipped.append([self.step, same and all(_equal(a, b) for a, b in zip(moments, kept, strict=False))])
        if verdict.checkpoint:
            path = Path(self.out, f"checkpoint-{self.step}-{RANK}.pt")
            torch.save(self.net.state_dict(), path)
            agent.checkpoint_saved(path)
        return verdict

    def ask(self):
        ask = self.options.get("ask")
        if ask and ask["rank"] == RANK and ask["step"] == self.step:
            directory = run_dir(Path(os.environ["GRPO_SENTINEL_DIR"]), "run")
            word = ControlWord(request_id=3, action=Action[ask["action"]], reason="asked", requested_by="user")
            write_control(directory, word)

    def backward(self, agent):
        for micro in range(self.options.get("accumulation", 1)):
            self.micro = micro
            x = torch.randn(4, 8, generator=self.data)
            loss = (self.model(x) ** 2).mean()
            if self.now("loss_nan"):
                loss = loss * float("nan")
            agent.observe_policy(loss=loss)
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def spoil_and_clip(self, agent):
        gradient = next(g for g in (_local(p.grad) for p in self.model.parameters()) if g is not None and g.numel())
        if self.now("reduced_nan"):
            gradient.view(-1)[0] = float("nan")
        if self.now("overflow"):
            gradient.view(-1)[0] = float("inf")
        if self.now("reduced_spike"):
            gradient.mul_(100)
        if self.scaler is not None and self.options.get("unscale", True):
            self.scaler.unscale_(self.optimizer)
        if not self.options.get("clip"):
            return None
        agent.look_at_gradients()
        clip = getattr(self.model, "clip_grad_norm_", None)
        limit = self.options["clip"]
        norm = clip(limit) if clip else torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def update(self, agent):
        if self.now("lr_behind_the_schedule"):
            self.optimizer.param_groups[0]["lr"] = 10.0
        if not self.now("scaler_skips_at"):
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()
        if self.options.get("schedule"):
            self.scheduler.step()
        self.optimizer.zero_grad()
        if self.now("weight_drifts"):
            with torch.no_grad():
                self.net[0].weight[0, 0] += 0.25

    def result(self):
        weights = b"".join(_local(p.detach()).numpy().tobytes() for p in self.model.parameters())
        agent = self.agent
        return {
            "active": agent.active,
            "voting": getattr(getattr(agent, "core", None), "voting", None),
            "why": getattr(getattr(agent, "core", None), "why_off", ""),
            "last_step": self.step,
            "verdicts": self.verdicts,
            "skipped": self.skipped,
            "weights": hashlib.sha256(weights).hexdigest(),
            "finite": all(bool(torch.isfinite(_local(p)).all()) for p in self.model.parameters()),
            "probes_off": sorted(agent.guard.off) if agent.active else [],
        }


def _local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _equal(one, other):
    return torch.equal(_local(one), _local(other))


if WORLD > 1:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
for out, options in each_scenario(sys.argv[1], RANK):
    (Path(out) / f"rank{RANK}.json").write_text(json.dumps(Loop(out, options).run()))
if WORLD > 1:
    dist.barrier()
    dist.destroy_process_group()
