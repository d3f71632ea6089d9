"""`attach()`: builds the agent of this rank, whatever is missing around it. Never raises into the trainer."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from grpo_sentinel.agent.agent import Agent
from grpo_sentinel.agent.arguments import misspelt, shown
from grpo_sentinel.agent.capture.capture import Capture
from grpo_sentinel.agent.collectives import Collectives, find_dump, own_files
from grpo_sentinel.agent.core import Core
from grpo_sentinel.agent.guard import Guard, say
from grpo_sentinel.agent.halt import HaltDesk
from grpo_sentinel.agent.handshake import Handshake, announce_absence, shake_hands
from grpo_sentinel.agent.null import NullAgent
from grpo_sentinel.agent.observing import CONTEXT_NAMES
from grpo_sentinel.agent.settings import Settings, settings_from_environment
from grpo_sentinel.agent.writing import NoWriter, Writer
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.protocol import (
    ControlReader,
    Geometry,
    RankWriter,
    choose_root,
    derive_parent_run_id,
    derive_run_id,
    new_identity,
    run_dir,
    run_id_is_given,
)
from grpo_sentinel.protocol.ended import mark_path, write_ended

_TRAINERS = {
    "is_gradient_accumulation_boundary": "grpo_sentinel.integrations.deepspeed:follow",
    "_generate_and_score_completions": "grpo_sentinel.integrations.trl:follow",
    "training_step": "grpo_sentinel.integrations.transformers:follow",
}
"""Integration by a method of the trainer that it needs; the first that is there is taken."""
_LOOP = "grpo_sentinel.integrations.torch_loop:follow"

_ARGUMENTS = frozenset({"trainer", "model", "optimizer", "scheduler", "settings", "run_id", "replicated"})

_current: Agent | None = None
_watched_parent = False
_stacks: IO[str] | None = None
_sigterm: IO[str] | None = None
_uncaught: object = None
_before_sigterm: object = None  # Python's view of the handler when ours was put before it


def attach(
    trainer: Any = None,
    *,
    model: torch.nn.Module | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    settings: Settings | None = None,
    run_id: str | None = None,
    replicated: bool | None = None,
    **config: Any,
) -> Agent | NullAgent:
    """Watch a transformers or TRL trainer, a DeepSpeed engine, or your own loop; on every rank, at the same place.

    With `trainer`, everything is fed from its hooks. With `model` and `optimizer` (or a list, where the loop steps
    several), the loop calls `observe_*` and `end_step`; with `scheduler` the learning rate is compared with what that
    last set. `config` is what the loop knows of itself (`vocab_size`, `group_size`, `epsilon_low`, `beta`,
    `max_grad_norm`, ...). `replicated` says whether every rank holds the same weights (found out for DDP).

    Never raises: disabled or broken gives a `NullAgent` and one line on stderr. May wait for the other ranks, at most
    about `settings.handshake_seconds`.
    """
    agent = begin(settings, run_id)
    if isinstance(agent, Agent):
        agent.guard.run("integration", _feed, agent, trainer, model, optimizer, scheduler, replicated, config)
    return agent


def begin(settings: Settings | None = None, run_id: str | None = None) -> Agent | NullAgent:
    """Build the agent without anything to watch yet; never raises."""
    try:
        return _build(settings, run_id)
    except Exception as error:  # whatever is wrong with us, training starts
        if os.environ.get("GRPO_SENTINEL_STRICT") == "1":
            raise
        return _give_up(f"{error}" if isinstance(error, SentinelError) else f"{type(error).__name__}: {error}")


def _build(settings: Any, run_id: Any) -> Agent | NullAgent:
    global _current
    if _watched_parent:
        return _give_up("this process was forked from a watched one; attach in the process that trains")
    if settings is not None and not isinstance(settings, Settings):
        say(f"attach(settings={shown(settings)}): it is left out; give a grpo_sentinel.agent.Settings")
        settings = None
    if run_id is not None and not isinstance(run_id, str):
        say(f"attach(run_id={shown(run_id)}): it is left out; give a string, the same on every rank")
        run_id = None
    settings = settings or settings_from_environment(run_id=run_id)
    if not settings.enabled:
        return _give_up("it is disabled (GRPO_SENTINEL=0 or enabled: false); remove that to watch this run")
    if _current is not None:
        _current.close("replaced by a new attachment")
    rank, world = place_in_world()
    given = run_id or settings.run_id
    guard = Guard(strict=settings.strict)
    if world > 1 and not given and not run_id_is_given():
        handshake = _handshake(settings, (derive_run_id(), derive_parent_run_id()))
        agreed, parent = (*handshake.names, "", "")[:2]
        writer, directory = _open_ring(settings, rank, world, agreed, parent)
    else:
        writer, directory = _open_ring(settings, rank, world, given, "")
        handshake = _handshake(settings)
    agent = Agent(
        settings=settings,
        core=Core(
            rank=rank,
            world=world,
            transport=handshake.transport,
            why_off=handshake.reason,
            gate=settings.gate,
            skip_above_norm=settings.skip_above_norm,
            on_error=lambda reason, trace: agent.event("vote_error", {"reason": reason, "traceback": trace}),
        ),
        desk=HaltDesk(
            None if directory is None else ControlReader(directory),
            lambda ack: guard.run("acknowledgement", writer.acknowledge, ack),
            where=str(directory or ""),
        ),
        writer=writer,
        guard=guard,
    )
    guard.on_failure(
        lambda probe, reason, trace: agent.event(
            "probe_error", {"probe": probe, "error": reason, "switched_off": probe in guard.off, "traceback": trace}
        )
    )
    told = {"voting": agent.core.voting, "over": handshake.over, "reason": handshake.reason, "world": world}
    agent.event("core", {**told, **({"flight_recorder_files": own} if (own := own_files()) else {})})
    if not agent.core.voting:
        say(
            f"step vote off on every rank ({handshake.reason}): the gate is local, halting is refused; "
            "start the job so that every rank attaches"
        )
    _current = agent
    if directory is not None:
        agent.last_words.interrupted = partial(write_ended, directory, signal.SIGINT, "interrupt", os.getpid())
        if settings.capture != "off":
            agent.capture = guard.run("capture", Capture, agent, directory.name)
        if world > 1 and (dump := find_dump()) is not None:
            agent.collectives = guard.run("collectives", Collectives, directory, rank, dump)
    guard.run("stacks", _answer_stack_signal, directory, rank)
    guard.run("sigterm", _note_sigterm, directory, rank)
    guard.run("exceptions", _watch_uncaught)
    return agent


def place_in_world() -> tuple[int, int]:
    """Give (rank, world size) of the default process group, else of the launcher's environment, else (0, 1)."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _handshake(settings: Settings, names: tuple[str, ...] = ()) -> Handshake:
    _, world = place_in_world()
    if world > 1 and not (dist.is_available() and dist.is_initialized()):
        return Handshake(transport=None, reason="torch.distributed is not initialised; attach after init_process_group")
    try:
        return shake_hands(
            timeout_s=settings.handshake_seconds, vote_timeout_s=settings.vote_timeout_seconds, names=names
        )
    except Exception as error:  # noqa: BLE001 - a broken store is the job's trouble; it will say so itself
        return Handshake(transport=None, reason=f"the handshake failed: {type(error).__name__}: {error}"[:300])


def _open_ring(settings: Settings, rank: int, world: int, run_id: str, parent: str) -> tuple[Writer, Path | None]:
    """Make this rank's segment; without one the core still works, so a full /dev/shm stops no vote."""
    try:
        geometry = Geometry(slots=settings.segment_slots, event_slots=settings.event_slots)
        directory = run_dir(choose_root(), run_id or derive_run_id())
        identity = new_identity(
            rank,
            int(os.environ.get("LOCAL_RANK", "0")),
            world,
            run_id or derive_run_id(),
            parent or derive_parent_run_id(),
        )
        return RankWriter(directory, identity, geometry, settings.group), directory
    except (SentinelError, OSError) as error:
        say(f"rank {rank} is not recorded: {error} Gate and step vote work; training goes on")
        return NoWriter(), None


def _feed(
    agent: Agent,
    trainer: Any,
    model: torch.nn.Module | None,
    optimizer: Any,
    scheduler: Any,
    replicated: bool | None,
    config: dict[str, Any],
) -> None:
    misspelt(agent.guard, "attach", config, _ARGUMENTS | CONTEXT_NAMES)
    target = next((where for method, where in _TRAINERS.items() if hasattr(trainer, method)), None)
    if trainer is not None and target is not None:
        _load(target)(agent, trainer, config)
        return
    if trainer is not None:
        agent.guard.refuse(
            "attach(trainer",
            f"attach({shown(trainer)}): no trainer that it knows (transformers, TRL) and no DeepSpeed engine; "
            "give one, or attach(model=..., optimizer=...)",
        )
    _load(_LOOP)(agent, model, optimizer, scheduler, replicated, config)
    if trainer is not None and model is None and optimizer is None:
        return  # said already
    if agent.core.rank == 0 and (missing := _missing(*agent.observer.watched())):
        where = getattr(agent.writer, "path", None)
        say(f"{missing}" if where is None else f"{missing} (ring: {where.parent})")


def _missing(parameters: Sequence[Any], optimizer: Any) -> str:
    """Say what of a loop is not watched, and what follows from that; "" where all of it is."""
    if not parameters and optimizer is None:
        return (
            "attached with no model and no optimizer: only what the loop gives to observe_...() is looked at, and no "
            "update can be stopped; give attach(model=..., optimizer=...)"
        )
    if optimizer is None:
        return (
            f"attached to a model of {len(parameters)} parameter tensors; no optimizer was given: the gate cannot stop "
            "an update unless the loop calls observe_gradients() before it, and no update is judged; give optimizer=..."
        )
    if not parameters:
        return (
            f"attached to {_kind(optimizer)}; no model was given: the gate cannot see a gradient unless the "
            "loop gives observe_gradients(norm), and none is judged; give model=..."
        )
    return ""


def _kind(optimizer: Any) -> str:
    several = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    return " and ".join(type(one).__name__ for one in several)


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _give_up(reason: str) -> NullAgent:
    say(f"not attached, training goes on unwatched: {reason}")
    announce_absence(reason)
    return NullAgent(reason)


def _answer_stack_signal(directory: Path | None, rank: int) -> None:
    """On SIGUSR2 write every thread's stack beside the ring, unless the job uses that signal itself."""
    global _stacks
    if directory is None or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return
    previous, _stacks = _stacks, open(directory / f"rank-{rank:05d}.stacks", "a", encoding="utf-8")  # noqa: SIM115
    faulthandler.register(signal.SIGUSR2, file=_stacks, all_threads=True)
    if previous is not None:
        previous.close()


def _note_sigterm(directory: Path | None, rank: int) -> None:
    """On SIGTERM write this thread's stack to a file, then let the signal do what it would have done without us.

    A handler in Python would wait for the collective that the thread may hang in, and the process would outlive the
    signal. faulthandler's is C: it writes, puts the earlier handler back, and raises the signal again.
    """
    global _sigterm, _before_sigterm
    if directory is None or signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        return
    _before_sigterm = signal.getsignal(signal.SIGTERM)
    previous, _sigterm = _sigterm, open(mark_path(directory, rank), "w", encoding="utf-8")  # noqa: SIM115
    faulthandler.register(signal.SIGTERM, file=_sigterm, all_threads=False, chain=True)
    if previous is not None:
        previous.close()


def _forget_parent() -> None:
    global _current, _watched_parent
    if _sigterm is not None and signal.getsignal(signal.SIGTERM) is _before_sigterm:  # nobody's own is in its place
        faulthandler.unregister(signal.SIGTERM)  # workers are ended by SIGTERM every day: that is not the rank's end
    if _current is not None:
        _watched_parent = True
        _current.disown()
        _current = None


def _close_at_exit() -> None:
    """A loop that just ends has finished; one that an exception ended is left open, as a death to be looked at.

    Ctrl-C is neither: a person ended the run, and that is said.
    """
    last = getattr(sys, "last_type", None)
    if _current is None or _current.failed:
        return
    if last is None:
        _current.close()
    elif last is KeyboardInterrupt:
        _current.close(f"ended by signal {int(signal.SIGINT)} (Ctrl-C) at step {_current.step}")


def _watch_uncaught() -> None:
    global _uncaught
    if sys.excepthook is not _uncaught:
        _uncaught = sys.excepthook = partial(_tell_uncaught, sys.excepthook)


def _tell_uncaught(before: Callable[..., Any], kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Tell the sidecar of an exception that nobody caught, then do what would have been done with it."""
    if _current is not None and not _current.closed and issubclass(kind, Exception):
        _current.guard.essential("exception", _current.exception, error, "the training script")
    before(kind, error, trace)


os.register_at_fork(after_in_child=_forget_parent)
atexit.register(_close_at_exit)
