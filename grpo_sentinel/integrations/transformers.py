"""transformers' Trainer: phases, data, loss, gradients, vote, gate and halt from callbacks and wrapped methods.

    order of one step:  on_step_begin, (training_step: compute_loss, backward) x micro-batches, clip_grad_norm_,
                        on_pre_optimizer_step (vote), optimizer.step (gate), on_step_end (verdict), save

`attach(trainer)` wraps; `SentinelCallback` alone, in `callbacks=[...]`, wraps nothing and sees the gradients only after
clipping.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback

from grpo_sentinel.agent.agent import Agent
from grpo_sentinel.agent.arguments import fails_open
from grpo_sentinel.agent.entry import begin
from grpo_sentinel.agent.guard import Guard
from grpo_sentinel.agent.null import NullAgent, Verdict
from grpo_sentinel.integrations.patches import Patches
from grpo_sentinel.integrations.versions import versions
from grpo_sentinel.records import Mode, Phase

Method = Callable[..., Any]


class SentinelCallback(TrainerCallback):  # type: ignore[misc]
    """Votes, gates, records and halts from the Trainer's own events; all ranks need it.

    `SentinelCallback()` attaches by itself when training begins.
    """

    def __init__(self, agent: Agent | None = None, watch_engine: Callable[[], bool] | None = None) -> None:
        self.agent: Agent | NullAgent | None = agent
        self._watch_engine = watch_engine  # takes over from `watch` when the trainer runs on an engine of its own
        self._alone = agent is None
        self._verdict = Verdict()
        self._own_guard = Guard()  # until there is an agent, and where there is none

    @property
    def guard(self) -> Guard:
        """What failures go into."""
        return self.agent.guard if isinstance(self.agent, Agent) else self._own_guard

    @fails_open()
    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **kw: Any,
    ) -> None:
        """Take model and optimizer as they are after preparation (FSDP replaces the parameters)."""
        if self._alone:
            self.agent = begin()
        if not isinstance(self.agent, Agent):
            return
        if self._watch_engine is not None and self._watch_engine():
            return
        self.agent.watch(model=model, optimizer=optimizer, replicated=_replicated(args))
        if lr_scheduler is not None:
            self.agent.observe_optimizer(scheduler=lr_scheduler)
        if self._alone:
            self.agent.configure(**configuration(args, model))

    @fails_open()
    def on_step_begin(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        """Name the step."""
        if isinstance(self.agent, Agent):
            self.agent.leave(Phase.DATA)
            self.agent.begin_step(_at(state, after=1))

    @fails_open()
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        """Vote here: every rank comes here once per step, also when a scaler then skips the optimizer."""
        agent = self.agent
        if isinstance(agent, Agent):
            agent.leave(Phase.BACKWARD)
            if self._alone or not (agent.looked or agent.core.scaled):  # scaled ones are read in the optimizer's hook
                agent.look_at_gradients()
            agent.vote()

    @fails_open()
    def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> Any:
        """Close the step and set the Trainer's flags, on all ranks at the same step."""
        if not isinstance(self.agent, Agent):
            return control
        self._verdict = self.agent.end_step(_at(state))
        if self._verdict.checkpoint:
            control.should_save = True
        if self._verdict.halt:
            control.should_training_stop = True
        return control

    @fails_open()
    def on_save(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        """Acknowledge the checkpoint that this rank has just finished writing."""
        if isinstance(self.agent, Agent):
            self.agent.checkpoint_saved(
                os.path.abspath(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))
            )

    @fails_open()
    def on_train_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        """Close the segment: finished, or halted."""
        if isinstance(self.agent, Agent):
            self.agent.close()


class TrainerFeed:
    """Wraps what the callbacks of a Trainer do not show. TRL's feed builds on it."""

    def __init__(self, agent: Agent, trainer: Any) -> None:
        self.agent = agent
        self.trainer = trainer
        self.patches = Patches()
        self._engine: Any = None  # DeepSpeed's

    def install(self, config: dict[str, Any]) -> None:
        """Wrap the instance, add the callback, send the configuration; undone when the agent closes."""
        callback = SentinelCallback(self.agent, self._watch_engine)
        self.trainer.add_callback(callback)
        self.agent.on_close(lambda: self.trainer.remove_callback(callback))
        self.agent.on_close(self.patches.undo)
        self.patches.wrap(self.trainer, "training_step", self._training_step)
        self.patches.wrap(self.trainer, "compute_loss", self._compute_loss)
        self.patches.wrap(self.trainer, "get_batch_samples", self._in_phase(Phase.DATA))
        self.patches.wrap(self.trainer, "_save_checkpoint", self._save)
        self.patches.wrap(self.trainer, "evaluate", self._evaluate)
        self.patches.wrap(self.trainer.accelerator, "clip_grad_norm_", self._clip)
        self.patches.wrap(self.trainer.accelerator, "unscale_gradients", self._unscale)
        self.patches.wrap(self.trainer.accelerator, "backward", self._in_phase(Phase.BACKWARD, arrives=True))
        self.agent.observe_optimizer(scaler=getattr(self.trainer.accelerator, "scaler", None))
        self.agent.configure(**{**self.configuration(), **config})

    def configuration(self) -> dict[str, Any]:
        """Read what is known before the first step."""
        return configuration(self.trainer.args, self.trainer.model)

    def _watch_engine(self) -> bool:
        """Follow DeepSpeed's engine, which steps inside `accelerator.backward`; False when there is none."""
        engine = getattr(getattr(self.trainer.accelerator, "deepspeed_engine_wrapped", None), "engine", None)
        if engine is None:
            return False
        from grpo_sentinel.integrations.deepspeed import watch_engine

        self.agent.guard.run("engine", watch_engine, self.agent, engine, self.patches)
        self._engine = engine
        return True

    def before_forward(self, inputs: Any) -> None:
        """Look at a micro-batch before its forward."""
        if isinstance(inputs, dict):
            tensors = {name: inputs[name] for name in ("input_ids", "attention_mask", "labels") if name in inputs}
            self.agent.observe_data(tensors)

    def after_loss(self, inputs: Any, loss: Any) -> None:
        """Look at a micro-batch's loss."""
        if isinstance(loss, torch.Tensor):
            self.agent.observe_policy(loss=loss.detach(), loss_scale=self.accumulation())

    def accumulation(self) -> float:
        """Micro-batches of the present step, by which the loss was divided."""
        steps = getattr(self.trainer, "current_gradient_accumulation_steps", None)
        return float(steps or self.trainer.args.gradient_accumulation_steps)

    def training(self) -> bool:
        """Tell training from evaluation."""
        return bool(torch.is_grad_enabled() and self.trainer.model.training)

    # ---- wrappers: the trainer's own call is never inside a try of ours, except to see it fail

    def _training_step(self, method: Method) -> Method:
        def training_step(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except BaseException as error:
                self.agent.exception(error, "training_step")
                raise

        return training_step

    def _compute_loss(self, method: Method) -> Method:
        def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.training():
                return method(model, inputs, *args, **kwargs)
            if self.agent.capture is not None:
                self.agent.capture.fed = True  # by what the loss is computed from, all of it
                self.agent.guard.run("capture", self.agent.capture.batch, inputs)
            self.agent.guard.run("data", self.before_forward, inputs)
            self.agent.enter(Phase.FORWARD)
            loss = method(model, inputs, *args, **kwargs)
            self.agent.leave(Phase.FORWARD)
            self.agent.guard.run("policy", self.after_loss, inputs, loss[0] if isinstance(loss, tuple) else loss)
            return loss

        return compute_loss

    def _clip(self, method: Method) -> Method:
        def clip_grad_norm_(parameters: Any, max_norm: Any, *args: Any, **kwargs: Any) -> Any:
            if self._engine is not None:
                return method(parameters, max_norm, *args, **kwargs)  # the engine has made its step by now
            if not self.agent.core.scaled:
                self.agent.look_at_gradients(clip_limit=max_norm)
            norm = method(parameters, max_norm, *args, **kwargs)
            self.agent.take_norm(norm)
            return norm

        return clip_grad_norm_

    def _unscale(self, method: Method) -> Method:
        """With a loss scaler the gradients are true only after it, which is inside `clip_grad_norm_`."""

        def unscale_gradients(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if self.agent.core.scaled:
                self.agent.look_at_gradients()
            return result

        return unscale_gradients

    def _save(self, method: Method) -> Method:
        def _save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            self.agent.enter(Phase.CHECKPOINT)
            try:
                return method(*args, **kwargs)
            except BaseException as error:
                self.agent.exception(error, "save_checkpoint")
                self.agent.checkpoint_failed(f"{type(error).__name__}: {error}"[:300])
                raise
            finally:
                self.agent.leave(Phase.CHECKPOINT)

        return _save_checkpoint

    def _evaluate(self, method: Method) -> Method:
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            with self.agent.phase(Phase.EVALUATION):
                return method(*args, **kwargs)

        return evaluate

    def _in_phase(self, phase: Phase, *, arrives: bool = False) -> Callable[[Method], Method]:
        def wrapper(method: Method) -> Method:
            def timed(*args: Any, **kwargs: Any) -> Any:
                if self.agent.mode is not Mode.TRAIN:
                    return method(*args, **kwargs)
                if arrives:
                    self.agent.clock.arrived()
                self.agent.enter(phase)
                result = method(*args, **kwargs)
                self.agent.leave(phase)
                return result

            return timed

        return wrapper


def follow(agent: Agent, trainer: Any, config: dict[str, Any]) -> None:
    """Watch a transformers Trainer that is about to train."""
    TrainerFeed(agent, trainer).install(config)


def _at(state: Any, after: int = 0) -> Any:
    """Give the Trainer's step; a state that has none is handed on, to be refused with words."""
    step = getattr(state, "global_step", state)
    return step + after if isinstance(step, int) else step


def configuration(args: Any, model: Any) -> dict[str, Any]:
    """Describe a Trainer's arguments and model for rules and probes."""
    names = (
        "learning_rate",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "max_grad_norm",
        "max_steps",
        "warmup_steps",
        "warmup_ratio",
        "gradient_accumulation_steps",
        "per_device_train_batch_size",
        "output_dir",
        "save_steps",
        "save_total_limit",
        "logging_steps",
        "bf16",
        "fp16",
        "seed",
    )
    found = {
        name: getattr(args, name) for name in names if isinstance(getattr(args, name, None), (int, float, str, bool))
    }
    found["output_dir"] = os.path.abspath(args.output_dir)
    found["save_strategy"] = str(getattr(args.save_strategy, "value", args.save_strategy))
    found["lr_scheduler_type"] = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    found["trainer"] = "transformers"
    found["world_size"] = int(args.world_size)
    plugin = getattr(args, "deepspeed_plugin", None)
    found["zero_stage"] = int(getattr(plugin, "zero_stage", 0) or 0)
    found["versions"] = versions("transformers", "accelerate", "trl", "peft", "deepspeed")
    if model is not None:
        found.update(_model_facts(model))
    return found


def _model_facts(model: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"peft": hasattr(model, "peft_config")}
    parameter = next(iter(model.parameters()), None)
    if parameter is not None:
        facts["dtype"] = str(parameter.dtype).removeprefix("torch.")
    config = getattr(model, "config", None)
    if config is not None:
        facts["model_type"] = str(getattr(config, "model_type", ""))
        facts["moe"] = bool(getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0))
    embedding = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    weight = getattr(embedding, "weight", None)
    rows = getattr(embedding, "num_embeddings", None) or (int(weight.shape[0]) if weight is not None else None)
    rows = rows or getattr(config, "vocab_size", None)
    if rows:
        facts["vocab_size"] = int(rows)
    return facts


def _replicated(args: Any) -> bool:
    """Tell whether every rank holds the same whole model: plain data parallelism, no sharding."""
    mode = str(getattr(getattr(args, "distributed_state", None), "distributed_type", ""))
    return int(args.world_size) > 1 and mode.rpartition(".")[2] in ("MULTI_GPU", "MULTI_CPU", "MULTI_NPU", "MULTI_XPU")
