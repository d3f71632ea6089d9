"""TRL's GRPOTrainer (0.19 to current) and its relatives: all five layers, per rank and raw.

    _generate_and_score_completions   generate; inside: log-probs without grad, rewards
    _calculate_rewards                raw scores of all ranks before any nan-mean; this rank's rows are cut out
    compute_loss                      the micro-batch really trained on, before its forward; its local loss after
    _get_per_token_logps[_and_entropies]   with grad enabled: the training forward's log-probs

Every method is wrapped on the instance and put back when the agent closes.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from grpo_sentinel.agent.agent import Agent
from grpo_sentinel.agent.probes.groups import digest, shared_over_ranks
from grpo_sentinel.agent.probes.model_state import autograd_kept, describe_model, observe_model
from grpo_sentinel.agent.probes.reward import CallMeter
from grpo_sentinel.agent.probes.samples import dataset_id
from grpo_sentinel.integrations.engine_sleep import watch_sleep
from grpo_sentinel.integrations.reference import ReferenceWatch
from grpo_sentinel.integrations.transformers import Method, TrainerFeed
from grpo_sentinel.records import Mode, Phase

_INPUTS = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "tool_mask",
)
_GATHERS = (Phase.GENERATE, Phase.REWARD, Phase.LOGPROBS, Phase.FORWARD)  # phases in which TRL gathers over ranks
_LOGPS = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")


class GrpoFeed(TrainerFeed):
    """Feeds an agent from one GRPOTrainer instance."""

    def __init__(self, agent: Agent, trainer: Any) -> None:
        super().__init__(agent, trainer)
        self._logps: torch.Tensor | None = None
        self._entropies: torch.Tensor | None = None
        self._generated_at = 0
        self._rows = 0  # of this rank's generation batch; 0 where groups span ranks
        self._graphs: dict[str, bool] = {}  # reward model -> whether its newest scores carry their graph
        self._reference = ReferenceWatch(trainer)

    def install(self, config: dict[str, Any]) -> None:
        """Wrap the GRPO methods, then what every Trainer has."""
        wrap = self.patches.wrap
        wrap(self.trainer, "_generate_and_score_completions", self._generate)
        if not wrap(self.trainer, "_calculate_rewards", self._calculate_rewards):
            self.agent.event("note", {"text": "this TRL has no _calculate_rewards: the reward layer is not watched"})
        wrapped = [wrap(self.trainer, name, self._log_probs) for name in _LOGPS]
        if not any(wrapped):
            self.agent.event("note", {"text": "this TRL has no log-prob method: the policy layer sees only the loss"})
        self._time_reward_functions()
        self._time_weight_sync()
        watch_sleep(self.agent, self.trainer, self.patches)
        if self.trainer.accelerator.num_processes > 1:
            self._take_out_waiting()
        super().install(config)

    def configuration(self) -> dict[str, Any]:
        """Add the algorithm to the Trainer's configuration."""
        return {**super().configuration(), **grpo_configuration(self.trainer)}

    # ---- generation and rewards

    def _generate(self, method: Method) -> Method:
        def _generate_and_score_completions(*args: Any, **kwargs: Any) -> Any:
            train = self.agent.mode is Mode.TRAIN
            self.agent.observer.generation += train
            self._generated_at = self.agent.step if train else self._generated_at
            self.agent.enter(Phase.GENERATE)
            output = method(*args, **kwargs)
            self.agent.leave(Phase.GENERATE)
            if train:
                self.agent.guard.run("generation", self._after_generation, output)
            return output

        return _generate_and_score_completions

    def _after_generation(self, output: Any) -> None:
        known = self._reference.judge(output)
        if self.agent.observer.full:
            known.update(self._reference.state())
            known.update(self._shared_samples())
        self.agent.observer.known(known)

    def _shared_samples(self) -> dict[str, float]:
        """Compare this rank's samples with those of the other ranks, which TRL gathers to log them."""
        world = self.trainer.accelerator.num_processes
        logs = getattr(self.trainer, "_logs", None) or getattr(self.trainer, "_textual_logs", None) or {}
        prompts, completions = list(logs.get("prompt", ())), list(logs.get("completion", ()))
        total = world * self._rows
        if world == 1 or not total or min(len(prompts), len(completions)) < total:
            return {}
        pairs = list(zip(prompts[-total:], completions[-total:], strict=True))
        return shared_over_ranks(pairs, rows=self._rows, rank=self.trainer.accelerator.process_index)

    def _calculate_rewards(self, method: Method) -> Method:
        def _calculate_rewards(inputs: Any, prompts: Any, completions: Any, *args: Any, **kwargs: Any) -> Any:
            self.agent.enter(Phase.REWARD)
            rewards = method(inputs, prompts, completions, *args, **kwargs)
            self.agent.leave(Phase.REWARD)
            self.agent.guard.run("reward", self._look_at_rewards, inputs, rewards, prompts, completions, args)
            return rewards

        return _calculate_rewards

    def _look_at_rewards(
        self, inputs: Any, rewards: torch.Tensor, prompts: Sequence[Any], completions: Sequence[Any], rest: Any
    ) -> None:
        trainer, agent = self.trainer, self.agent
        rows = len(prompts)
        start = trainer.accelerator.process_index * rows if rewards.shape[0] != rows else 0
        evaluating = agent.mode is Mode.EVALUATION
        size = int(getattr(trainer, "num_generations_eval", 0) or 0) if evaluating else int(trainer.num_generations)
        size = size or int(trainer.num_generations)
        whole = start % size == 0 and rows % size == 0  # else groups span ranks: look at this rank's scores only
        self._rows = rows if whole else 0
        lengths = [len(ids) for ids in rest[0]] if rest and len(rest[0]) == rows else None
        keys = [digest(completion) for completion in completions]
        agent.observe_rewards(
            rewards.detach()[start : start + rows],
            func_names=self._reward_names(rewards.shape[1]),
            weights=getattr(trainer, "reward_weights", None),
            completion_lengths_B=lengths,
            group_size=size if whole else None,
            completions_B=keys,
            prompts_B=None if evaluating else prompts,
            sources_B=None if evaluating else _sources(inputs),
            extra=self._host_facts(prompts, keys, whole and evaluating),
            identify=lambda row: dataset_id(inputs[row]) or {"prompt_digest": digest(prompts[row])},
        )

    def _host_facts(self, prompts: Sequence[Any], completions: Sequence[Any], groups: bool) -> dict[str, float]:
        facts: dict[str, float] = {}
        if groups:
            facts.update(self.agent.guard.run("groups", self.agent.observer.groups, prompts, completions) or {})
        for name, function in zip(self._reward_names(None), self.trainer.reward_funcs, strict=False):
            if isinstance(function, torch.nn.Module) and self.agent.observer.full:
                facts.update(self.agent.guard.run("reward model", observe_model, name, function) or {})
                if name in self._graphs:
                    facts[f"reward.model_autograd[{name}]"] = float(self._graphs[name])
        return facts

    def _reward_names(self, count: int | None) -> list[str]:
        names = getattr(self.trainer, "reward_func_names", None)
        if names is None:
            names = [_name_of(function) for function in self.trainer.reward_funcs]
        # A model that was made from a configuration has an empty name.
        names = [str(name) or f"reward{index}" for index, name in enumerate(names)]
        return names if count is None or len(names) == count else [f"reward{index}" for index in range(count)]

    def _time_reward_functions(self) -> None:
        functions: list[Any] = []
        for name, function in zip(self._reward_names(None), self.trainer.reward_funcs, strict=False):
            if isinstance(function, torch.nn.Module):
                self.patches.wrap(function, "forward", self._measured(name))
                functions.append(function)
            elif asyncio.iscoroutinefunction(function) or asyncio.iscoroutinefunction(type(function).__call__):
                functions.append(timed_coroutine(function, self.agent.observer.rewards.calls, name))
            else:
                functions.append(self._measured(name)(function))
        self.patches.set(self.trainer, "reward_funcs", functions)

    def _measured(self, name: str) -> Callable[[Method], Method]:
        guard, calls = self.agent.guard, self.agent.observer.rewards.calls

        def wrapper(method: Method) -> Method:
            @functools.wraps(method)
            def call(*args: Any, **kwargs: Any) -> Any:
                meter = guard.run("reward calls", _entered, calls, name)
                try:
                    result = method(*args, **kwargs)
                except BaseException as error:
                    if meter is not None:
                        guard.run("reward calls", meter.__exit__, type(error), error, error.__traceback__)
                    self.agent.exception(error, f"reward function {name}")
                    raise
                if meter is not None:
                    guard.run("reward calls", meter.__exit__, None, None, None)
                guard.run("reward calls", self._note_graph, name, result)
                return result

            return call

        return wrapper

    def _note_graph(self, name: str, scores: Any) -> None:
        self._graphs[name] = autograd_kept(scores)

    def _time_weight_sync(self) -> None:
        """Give the hand-over of weights to vLLM a clock of its own, under the names that TRL has given it."""
        for owner, name in (
            (self.trainer, "_move_model_to_vllm"),
            (getattr(self.trainer, "vllm_generation", None), "sync_weights"),
        ):
            if callable(getattr(owner, name, None)):
                self.patches.wrap(owner, name, self._in_phase(Phase.WEIGHT_SYNC))

    def _take_out_waiting(self) -> None:
        """Tell waiting for late ranks from being late, in the collectives before the training forward."""

        def waits(method: Method) -> Method:
            @functools.wraps(method)
            def call(*args: Any, **kwargs: Any) -> Any:
                with self.agent.clock.waiting():
                    if self.agent.mode is not Mode.TRAIN or self.agent.phases.now not in _GATHERS:
                        return method(*args, **kwargs)
                    self.agent.enter(Phase.VOTE)  # who stands here merely waits for those that are still at work
                    result = method(*args, **kwargs)
                    self.agent.leave(Phase.VOTE)
                    return result

            return call

        for name in ("gather", "gather_for_metrics", "reduce", "pad_across_processes"):
            self.patches.wrap(self.trainer.accelerator, name, waits)
        homes = {cls.__module__ for cls in type(self.trainer).__mro__ if cls.__module__.startswith("trl.")}
        for module in [sys.modules[home] for home in sorted(homes) if home in sys.modules]:
            for name in ("gather", "gather_object"):
                if name in vars(module):
                    self.patches.wrap(module, name, waits)

    # ---- the training forward

    def _log_probs(self, method: Method) -> Method:
        def log_probs(*args: Any, **kwargs: Any) -> Any:
            if not self.training():
                self.agent.enter(Phase.LOGPROBS)
                result = method(*args, **kwargs)
                self.agent.leave(Phase.LOGPROBS)
                self.agent.guard.run("reference", self._reference.saw, args, result)
                return result
            self.agent.clock.arrived()
            result = method(*args, **kwargs)
            parts = result if isinstance(result, tuple) else (result,)
            self._logps = parts[0].detach() if isinstance(parts[0], torch.Tensor) else None
            entropies = parts[1] if len(parts) > 1 else None
            self._entropies = entropies.detach() if isinstance(entropies, torch.Tensor) else None
            return result

        return log_probs

    def before_forward(self, inputs: Any) -> None:
        """Look at the micro-batch as the loss will see it."""
        self._logps = self._entropies = None
        self.agent.observe_data({name: inputs[name] for name in _INPUTS if inputs.get(name) is not None})

    def after_loss(self, inputs: Any, loss: Any) -> None:
        """Look at log-probs, advantages and loss of the micro-batch; then let go of them."""
        logps, entropies, self._logps, self._entropies = self._logps, self._entropies, None, None
        mask = inputs.get("completion_mask")
        if mask is not None and inputs.get("tool_mask") is not None:
            mask = mask * inputs["tool_mask"]
        old = inputs.get("old_per_token_logps")
        self.agent.observe_policy(
            logp_BT=logps,
            mask_BT=mask,
            advantages=inputs.get("advantages"),
            old_logp_BT=old,
            ref_logp_BT=inputs.get("ref_per_token_logps"),
            sampling_logp_BT=inputs.get("sampling_per_token_logps"),
            entropy_BT=entropies,
            completion_ids_BT=inputs.get("completion_ids"),
            loss=loss.detach(),
            loss_scale=self.accumulation(),
            on_policy=old is None or self._generated_at == self.agent.step,
        )
        self.agent.observer.known(self._trainers_own())

    def _trainers_own(self) -> dict[str, float]:
        """Give what the trainer has computed and kept for its log, as mean over the step's micro-batches."""
        found = {"data.sample_age_steps": float(self.agent.step - self._generated_at)}
        metrics = getattr(self.trainer, "_metrics", None) or {}
        kl = list(metrics.get("train", {}).get("kl", ()))[-self.agent.observer.micro_batch - 1 :]
        if kl:
            found["policy.kl_reported_nats"] = sum(kl) / len(kl)
        return found


def follow(agent: Agent, trainer: Any, config: dict[str, Any]) -> None:
    """Watch a GRPOTrainer that is about to train."""
    GrpoFeed(agent, trainer).install(config)


def grpo_configuration(trainer: Any) -> dict[str, Any]:
    """Describe the algorithm: loss, clipping, KL weight, groups, limits, token ids."""
    args = trainer.args
    found: dict[str, Any] = {"trainer": "trl", "algorithm": _algorithm(args)}
    for name in (
        "loss_type",
        "beta",
        "epsilon",
        "epsilon_high",
        "delta",
        "num_generations",
        "num_iterations",
        "steps_per_generation",
        "max_prompt_length",
        "max_completion_length",
        "temperature",
        "importance_sampling_level",
        "use_vllm",
        "mask_truncated_completions",
        "sync_ref_model",
        "top_entropy_quantile",
        "multi_objective_aggregation",
    ):
        value = getattr(args, name, None)
        if isinstance(value, (int, float, str, bool)):
            found[name] = value
    scale = getattr(args, "scale_rewards", None)
    found["scale_rewards"] = (
        {True: "group", False: "none"}.get(scale, str(scale)) if isinstance(scale, bool) else str(scale)
    )
    found["epsilon_low"] = getattr(trainer, "epsilon_low", getattr(args, "epsilon", 0.2))
    found["epsilon_high"] = (
        getattr(trainer, "epsilon_high", None) or getattr(args, "epsilon_high", None) or found["epsilon_low"]
    )
    found.update(_sampling_weights(args))
    found["group_size"] = int(getattr(trainer, "num_generations", 0)) or None
    given = getattr(trainer, "reward_func_names", [])
    found["reward_functions"] = names = [str(name) or f"reward{index}" for index, name in enumerate(given)]
    models = dict(zip(names, trainer.reward_funcs, strict=False)) | {"reference": getattr(trainer, "ref_model", None)}
    described = {name: describe_model(model) for name, model in models.items() if isinstance(model, torch.nn.Module)}
    found["frozen_models"] = described or None
    found.update(_token_ids(trainer))
    return {name: value for name, value in found.items() if value is not None}


def _algorithm(args: Any) -> str:
    """Name the algorithm by what makes it differ: the loss, and sequence-level ratios (GSPO)."""
    if getattr(args, "importance_sampling_level", "token") == "sequence":
        return "gspo"
    return str(getattr(args, "loss_type", "grpo"))


def _sources(inputs: Any) -> list[Any] | None:
    """Name the data set of each row, where the rows have a column for it."""
    rows = list(inputs)
    first = rows[0] if rows and isinstance(rows[0], dict) else {}
    column = next((name for name in ("data_source", "source", "dataset", "dataset_name") if name in first), None)
    return None if column is None else [row.get(column) for row in rows]


def _sampling_weights(args: Any) -> dict[str, Any]:
    """Say where truncated importance sampling cuts, and of what, under the names that TRL has given both."""
    caps = (getattr(args, f"vllm_importance_sampling_{name}", None) for name in ("clip_max", "cap"))
    cap = next((float(cap) for cap in caps if isinstance(cap, (int, float)) and cap > 0), None)
    mode = str(getattr(args, "vllm_importance_sampling_mode", "token"))
    return {"sampling_cap": cap, "sampling_level": "sequence" if mode.startswith("sequence") else "token"}


def _token_ids(trainer: Any) -> dict[str, Any]:
    processor = getattr(trainer, "processing_class", None)
    tokenizer = getattr(processor, "tokenizer", processor)
    ids = {
        "pad_id": getattr(trainer, "pad_token_id", None) or getattr(tokenizer, "pad_token_id", None),
        "eos_id": getattr(trainer, "eos_token_id", None) or getattr(tokenizer, "eos_token_id", None),
        "unk_id": getattr(tokenizer, "unk_token_id", None),
    }
    return {name: value for name, value in ids.items() if value is not None}


def timed_coroutine(function: Any, calls: CallMeter, name: str) -> Any:
    """Wrap an asynchronous reward function: TRL runs several at once on the loop of another thread, outside the guard.

    What leaves it is counted here and told when it comes out of the training step.
    """

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with calls.measure(name):
            return await function(*args, **kwargs)

    return call


def _entered(calls: Any, name: str) -> Any:
    manager = calls.measure(name)
    manager.__enter__()
    return manager


def _name_of(function: Any) -> str:
    config = getattr(function, "config", None)
    if config is not None:
        return str(getattr(config, "_name_or_path", "reward_model")).rpartition("/")[2]
    return str(getattr(function, "__name__", type(function).__name__))
