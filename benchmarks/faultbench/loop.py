"""A plain PyTorch GRPO loop, alone or under DistributedDataParallel, attached to as the quickstart tells.

    prompts ▸ rollout ▸ score/NAME ▸ advantages ▸ batch ▸ logps ▸ loss ▸ backward ▸ gradients ▸ clip ▸ update ▸ updated

The words are the sites where a fault can be put (`fault.Sites`). The loop knows nothing of faults otherwise.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

import grpo_sentinel
from benchmarks.faultbench import policy as world
from benchmarks.faultbench.fault import Sites

GROUP = 6


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """What a run trains with; a mechanism's `config` replaces fields."""

    steps: int = 80
    seed: int = 1
    learning_rate: float = 3e-4
    warmup: int = 5
    beta: float = 0.02
    iterations: int = 1
    max_grad_norm: float | None = 1.0
    groups: int = 4  # prompts a rank and step
    epsilon: float = 0.2
    lora: bool = False
    bf16: bool = False
    save_every: int = 5
    decay_to_zero: bool = False
    weight_decay: float = 0.0
    long_prompts: bool = True  # prompts of mixed lengths
    scale_rewards: str = "group"


class Loop:
    """One rank of one run."""

    def __init__(self, folder: Path, assets: Path, config: LoopConfig, *, attach: bool = True) -> None:
        self.folder, self.config = folder, config
        self.sites = Sites()
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.sites.rank = self.rank
        torch.manual_seed(1000 * config.seed + self.rank)
        self.draw = random.Random(1000 * config.seed + self.rank)
        stored = torch.load(assets, weights_only=True)
        self.policy, self.reference, self.judge = world.Policy(), world.Policy(), world.Judge()
        for model, name in ((self.policy, "policy"), (self.reference, "policy"), (self.judge, "judge")):
            model.load_state_dict(stored[name])
        if config.lora:
            _add_lora(self.policy)
        if config.bf16:
            self.policy = self.policy.bfloat16()
        for frozen in (self.reference, self.judge):
            frozen.eval().requires_grad_(False)
        self.scorers: dict[str, Any] = {"accuracy": world.accuracy, "shortness": world.shortness}
        self.model: Any = torch.nn.parallel.DistributedDataParallel(self.policy) if self.world > 1 else self.policy
        self.optimizer = torch.optim.AdamW(
            [p for p in self.policy.parameters() if p.requires_grad],
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            betas=(0.9, 0.99),
        )
        self.optimizer.register_step_post_hook(lambda *a: self.sites.pass_through("updated", self.optimizer) and None)
        self.schedule_factor = self._factor
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda done: self.schedule_factor(done))
        self.rollout_policy: Any = self.policy  # the rollout engine's weights: synchronised after every update
        self.temperature = 1.0
        self.ban_eos = False
        self.batch: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}
        self.losses_nonfinite: list[int] = []
        self.log: Any = None
        self.attach = attach
        self.agent: Any = None
        self.watched_model, self.watched_optimizer = self.model, self.optimizer
        self.stop = False

    def scorer_names(self) -> tuple[str, ...]:
        return (*self.scorers, "judge")

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in self.policy.named_parameters() if p.requires_grad]

    def note_fault(self) -> None:
        """Write down at once when the fault first acts: the process may die of it."""
        fact = {"step": self.sites.first_act, "wall_ns": time.time_ns()}
        (self.folder / f"fault-rank{self.rank}.json").write_text(json.dumps(fact))

    def _factor(self, done: int) -> float:
        warm = min(1.0, (done + 1) / self.config.warmup) if self.config.warmup else 1.0
        left = max(0.0, 1 - done / self.config.steps) if self.config.decay_to_zero else 1.0
        return warm * left

    # ---- the run

    def run(self) -> None:
        """Train to the end, or until asked to halt."""
        config = self.config
        if self.attach:
            self.agent = grpo_sentinel.attach(
                model=self.watched_model,
                optimizer=self.watched_optimizer,
                scheduler=self.scheduler,
                vocab_size=world.VOCAB,
                pad_id=world.PAD,
                eos_id=world.EOS,
                unk_id=world.UNK,
                group_size=GROUP,
                num_generations=GROUP,
                max_grad_norm=config.max_grad_norm,
                beta=config.beta,
                num_iterations=config.iterations,
                epsilon_low=config.epsilon,
                epsilon_high=config.epsilon,
                scale_rewards=config.scale_rewards,
                loss_type="grpo",
                max_completion_length=world.COMPLETION,
                max_prompt_length=world.PROMPT,
                output_dir=str(self.folder),
            )
        else:
            from grpo_sentinel.agent.null import NullAgent

            self.agent = NullAgent("not attached: the peer's own run")
        if self.rank == 0:
            self.log = (self.folder / "log.jsonl").open("w", buffering=1)
        for step in range(1, config.steps + 1):
            self.sites.step = step
            verdict = self.one_step(step)
            if verdict.checkpoint or (config.save_every and step % config.save_every == 0):
                self.save(step)
            if verdict.halt or self.stop:
                break
        self.agent.close()

    def one_step(self, step: int) -> Any:
        self.metrics = {}
        self.sites.pass_through("step")
        if (step - 1) % self.config.iterations == 0:
            with self.agent.phase("data"):
                self.sites.pass_through("load")
                prompts = self.sites.pass_through("prompts", self.prompts())
            self.batch = self.generate(prompts)
        batch = self.sites.pass_through("batch", dict(self.batch))
        self.agent.observe_data(batch)
        with self.agent.phase("forward"):
            loss, logps, entropy = self.loss(batch)
        self.agent.observe_policy(
            logp_BT=logps,
            mask_BT=batch["completion_mask"],
            advantages=batch["advantages"],
            old_logp_BT=batch["old_per_token_logps"],
            ref_logp_BT=batch.get("ref_per_token_logps"),
            sampling_logp_BT=batch["sampling_per_token_logps"],
            entropy_BT=entropy,
            completion_ids_BT=batch["completion_ids"],
            loss=loss.detach(),
            on_policy=(step - 1) % self.config.iterations == 0,
        )
        if not math.isfinite(float(loss.detach())):
            self.losses_nonfinite.append(step)  # what a check of the loss on every rank would have seen
        with self.agent.phase("backward"):
            self.backward(loss)
        self.sites.pass_through("gradients", self.named_parameters())
        self.agent.look_at_gradients(clip_limit=self.config.max_grad_norm)
        norm = self.clip()
        self.agent.observe_gradients(norm, clip_limit=self.config.max_grad_norm)
        self.sites.pass_through("update", self.optimizer)
        self.update()
        self.tell(step, loss, norm)
        verdict = self.agent.end_step(step)
        self.scheduler.step()
        self.zero_grad()
        return verdict

    def prompts(self) -> list[tuple[list[int], list[int]]]:
        """Give (prompt, wanted) of every row, a group's rows adjacent."""
        rows = [world.prompt_of(self.draw) for _ in range(self.config.groups)]
        return [(row, world.wanted(row)) for row in rows for _ in range(GROUP)]

    def generate(self, prompts: list[tuple[list[int], list[int]]]) -> dict[str, Any]:
        """Sample, score, and make the batch that is trained on."""
        ids, mask = world.pad_left([prompt for prompt, _ in prompts], world.PROMPT)
        with self.agent.phase("generate"):
            self.rollout_policy.eval()
            completion, kept, sampled = world.sample(
                self.rollout_policy, ids, mask, temperature=self.temperature, ban_eos=self.ban_eos
            )
        batch: dict[str, Any] = {
            "prompt_ids": ids,
            "prompt_mask": mask,
            "completion_ids": completion,
            "completion_mask": kept,
            "sampling_per_token_logps": sampled,
        }
        batch = self.sites.pass_through("rollout", batch)
        rewards, lengths = self.score(prompts, batch)
        batch["advantages"] = self.sites.pass_through("advantages", self.advantages(rewards))
        with self.agent.phase("logprobs"), torch.no_grad():
            batch["old_per_token_logps"] = self.logps(self.policy, batch)[0]
            if self.config.beta:
                batch["ref_per_token_logps"] = self.logps(self.reference, batch)[0]
        self.metrics["completion_length"] = sum(lengths) / len(lengths)
        return self.sites.pass_through("made", batch)

    def score(self, prompts: list[tuple[list[int], list[int]]], batch: dict[str, Any]) -> tuple[Any, list[int]]:
        texts = [
            [t for t, k in zip(ids, kept, strict=True) if k]
            for ids, kept in zip(batch["completion_ids"].tolist(), batch["completion_mask"].tolist(), strict=True)
        ]
        scores: dict[str, Any] = {}
        extra: dict[str, float] = {}
        with self.agent.phase("reward"):
            calls = self.agent.observer.rewards.calls.measure if self.attach else lambda name: contextlib.nullcontext()
            for name, function in self.scorers.items():
                with calls(name):
                    scores[name] = self.sites.pass_through(
                        f"score/{name}", [function(p, t, w) for (p, w), t in zip(prompts, texts, strict=True)]
                    )
            with calls("judge"), torch.no_grad():
                judged = self.judge(batch["completion_ids"], batch["completion_mask"])
                scores["judge"] = self.sites.pass_through("score/judge", judged)
        if self.attach:
            extra = self._facts(prompts, texts, scores["judge"])
        lengths = [len(text) for text in texts]
        whole = {n: s for n, s in scores.items() if len(s) == len(prompts)}
        self.agent.observe_rewards(
            whole, group_size=GROUP, completion_lengths_B=lengths, completions_B=texts, extra=extra
        )
        columns = [torch.tensor([math.nan if x is None else float(x) for x in s]) for s in whole.values()]
        total = torch.stack(columns).nansum(0) if len(columns) > 1 else columns[0]
        total = torch.where(torch.stack(columns).isnan().all(0), torch.tensor(math.nan), total)
        self.metrics |= {"reward": float(total.mean()), "reward_std": float(total.std())}
        grouped = total.view(-1, GROUP)
        self.metrics["frac_reward_zero_std"] = float((grouped.std(1) < 1e-9).float().mean())
        for name, column in zip(whole, columns, strict=True):
            self.metrics[f"rewards/{name}/mean"] = float(column.nanmean())
        return total, lengths

    def _facts(self, prompts: list[Any], texts: list[list[int]], judged: Any) -> dict[str, float]:
        """What the plain loop hands over by itself and the TRL integration sees alone: groups and reward model."""
        from grpo_sentinel.agent.probes.groups import observe_groups
        from grpo_sentinel.agent.probes.model_state import observe_model

        groups = observe_groups([prompt for prompt, _ in prompts], texts, group_size=GROUP)
        return {**groups, **observe_model("judge", self.judge, scores=judged)}

    def advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        grouped = rewards.view(-1, GROUP)
        centred = grouped - grouped.mean(1, keepdim=True)
        if self.config.scale_rewards == "group":
            centred = centred / (grouped.std(1, keepdim=True) + 1e-4)
        return centred.reshape(-1)

    def logps(self, model: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs of the completion's tokens and the entropy at their places, B x C."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask = torch.cat([batch["prompt_mask"], (batch["completion_mask"] != 0).long()], 1)
        start = batch["prompt_ids"].shape[1]
        logits = model(ids, mask)[:, start - 1 : -1].float()
        spread = torch.log_softmax(logits, 2)
        picked = spread.gather(2, batch["completion_ids"].clamp(0, world.VOCAB - 1).unsqueeze(2)).squeeze(2)
        return picked, -(spread.exp() * spread).sum(2)

    def loss(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """GRPO's clipped loss with the k3 penalty, mean over the tokens of the loss mask."""
        logps, entropy = self.logps(self.model, batch)
        logps = self.sites.pass_through("logps", logps)
        self.last_logps = logps
        mask = batch.get("loss_mask", batch["completion_mask"]).to(logps.dtype)
        advantages = batch["advantages"].to(logps.dtype).view(-1, 1)
        log_ratio = logps - batch["old_per_token_logps"]
        ratio = log_ratio.exp()
        low, high = 1 - self.config.epsilon, 1 + self.config.epsilon
        per_token = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        if self.config.beta:
            gap = batch["ref_per_token_logps"] - logps
            kl = gap.exp() - gap - 1
            per_token = per_token + self.config.beta * kl
            self.metrics["kl"] = float((kl * mask).sum().detach() / mask.sum().clamp(min=1))
        self.metrics["entropy"] = float((entropy * mask).sum().detach() / mask.sum().clamp(min=1))
        outside = ((ratio < low) & (advantages < 0)) | ((ratio > high) & (advantages > 0))
        self.metrics["clip_ratio/region_mean"] = float((outside * mask).sum().detach() / mask.sum().clamp(min=1))
        loss = (per_token * mask).sum() / mask.sum().clamp(min=1)
        self.entropy = (entropy * mask).sum() / mask.sum().clamp(min=1)
        return self.sites.pass_through("loss", loss), logps, entropy

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def clip(self) -> torch.Tensor:
        limit = self.config.max_grad_norm
        parameters = [p for _, p in self.named_parameters()]
        return torch.nn.utils.clip_grad_norm_(parameters, limit if limit is not None else math.inf)

    def update(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    # ---- what the run leaves

    def tell(self, step: int, loss: torch.Tensor, norm: torch.Tensor) -> None:
        """Log what TRL logs under TRL's names, mean over the ranks."""
        row = {"loss": float(loss.detach()), "grad_norm": float(norm), **self.metrics}
        row["learning_rate"] = float(self.scheduler.get_last_lr()[0])
        if self.world > 1:
            values = torch.tensor(list(row.values()), dtype=torch.float64)
            dist.all_reduce(values)
            row = dict(zip(row, (values / self.world).tolist(), strict=True))
        if self.log is not None:
            self.log.write(json.dumps({"step": step, **row}) + "\n")

    def save(self, step: int) -> None:
        if self.rank == 0:
            place = self.folder / f"checkpoint-{step}"
            place.mkdir(exist_ok=True)
            state = {name: tensor.detach().clone().contiguous() for name, tensor in self.policy.state_dict().items()}
            save_file(state, str(place / "model.safetensors"))
            (place / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
            self.agent.checkpoint_saved(place)
        elif self.agent is not None:
            self.agent.checkpoint_saved(self.folder / f"checkpoint-{step}")


def _add_lora(policy: Any, size: int = 4) -> None:
    """Put low-rank adapters on the projections and freeze the rest, as PEFT does."""
    from peft import LoraConfig, inject_adapter_in_model

    inject_adapter_in_model(LoraConfig(r=size, lora_alpha=2 * size, target_modules=["qkv", "out", "up"]), policy)


def configured(changes: dict[str, Any], **more: Any) -> LoopConfig:
    """Make the configuration of a run."""
    return replace(LoopConfig(), **changes, **more)
