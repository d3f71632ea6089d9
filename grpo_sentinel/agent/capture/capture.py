"""Takes evidence on this rank: on a fault by itself, on request at the step that the ranks agreed on.

    look_at_gradients ─▶ before_clipping     non-finite on the host already: the gradients as they were
    vote              ─▶ voted               before the optimizer; a request, or a non-finite gradient
    record            ─▶ landed              a loss that is not finite though the gradient was
    observe_rewards   ─▶ rewards             a score that is not finite
    exception         ─▶ exception           what the loop still holds, while its error is on the way out

A request for a capture or a trace arms the next step, so that its random state, log-probs and operations are known.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grpo_sentinel.agent.capture import rng
from grpo_sentinel.agent.capture.contents import Contents
from grpo_sentinel.agent.capture.files import write
from grpo_sentinel.agent.capture.memory import snapshot
from grpo_sentinel.agent.capture.recent import Recent
from grpo_sentinel.agent.capture.spool import Spool, spool_dir
from grpo_sentinel.agent.capture.trace import AnomalyTrace, first_nan_input
from grpo_sentinel.agent.probes.pack import Part
from grpo_sentinel.records import Action, Mode

if TYPE_CHECKING:
    from grpo_sentinel.agent.agent import Agent
    from grpo_sentinel.agent.core import Outcome

AGAIN_STEPS = 200  # a fault of one kind is captured once in so many steps
EXCEPTION_SECONDS = 10.0  # a device that hangs must not keep an exception from leaving


class Capture:
    """Evidence of one rank. Called through the guard, except for the notes of batches."""

    def __init__(self, agent: Agent, run_id: str) -> None:
        settings = agent.settings
        self.recent = Recent()
        self.fed = False  # an integration notes the batches, not `observe_data`
        self._agent = agent
        self._spool = Spool(
            spool_dir(settings.spool), run_id, agent.core.rank,
            most_files=settings.capture_files, most_bytes=settings.capture_bytes,
        )  # fmt: skip
        self._on_anomaly = settings.capture == "on_anomaly"
        self._done: dict[str, int] = {}  # kind of fault -> step of its newest capture
        self._armed_at = 0
        self._model: Callable[[], torch.nn.Module | None] = lambda: None
        self._came_in = ""
        self._trace: AnomalyTrace | None = None

    # ---- from the agent, at every step

    def watch(self, model: torch.nn.Module | None) -> None:
        """Learn whether a forward draws random numbers: only then is their state noted before each step."""
        if model is not None:
            self.recent.with_rng = rng.has_dropout(model)
            self._model = weakref.ref(model)

    def batch(self, tensors: Mapping[str, Any]) -> None:
        """Note a micro-batch before its forward; begin the trace that is due."""
        if self._agent.mode is Mode.TRAIN and hasattr(tensors, "items"):
            self.recent.batch(self._agent.step, tensors)
            if self._trace is not None and not self._trace.running:
                self._begin_trace(tensors)

    def due(self, outcome: Outcome) -> bool:
        """Tell whether `voted` has anything to do."""
        return bool(outcome.flag) or self.recent.armed or self._agent.desk.evidence is not None

    # ---- moments

    def before_clipping(self) -> None:
        """Take gradients as they are before clipping spreads the NaN over all of them: where that costs no waiting."""
        pack = self._agent.observer.gradient
        if (
            pack is None
            or pack.norm is None
            or self._agent.core.scaled
            or (self._agent.observer.must_wait and not self.recent.armed)
        ):
            return
        if not math.isfinite(float(pack.norm)):
            self._fault("gradient")

    def voted(self, outcome: Outcome) -> None:
        """Take what the vote asks for; the optimizer has not run yet."""
        agent, step = self._agent, self._agent.step
        if outcome.flag and not outcome.by_scaler and agent.mode is Mode.TRAIN:
            self._fault("gradient", {"cause": outcome.cause})
        evidence = agent.desk.evidence
        if evidence is None:
            self.recent.forget()
        elif evidence.action is not Action.MEMORY_SNAPSHOT and self._armed_at != evidence.request_id:
            self._armed_at = evidence.request_id
            self.recent.armed = True
            self._trace = AnomalyTrace() if evidence.action is Action.ANOMALY_TRACE else None
        else:
            try:
                self._serve(evidence.action, evidence.reason, step)
            except (RuntimeError, OSError) as error:
                agent.desk.evidence_failed(f"{error}"[:300])
                self.recent.forget()

    def _serve(self, action: Action, reason: str, step: int) -> None:
        """Take what was asked for and acknowledge it."""
        if action is Action.ANOMALY_TRACE:
            self._end_trace(step)
            return
        path = self._memory(step) if action is Action.MEMORY_SNAPSHOT else self._take("request", {"asked": reason})
        self._agent.desk.evidence_taken(path)
        self.recent.forget()

    def next_step(self) -> None:
        """Begin the trace here when the loop shows no batch."""
        if self._trace is not None and not self._trace.running and not self.recent.batches(self._agent.step):
            self._trace.start()

    def rewards(self, values: Mapping[str, float], scores: Any) -> None:
        """Take raw scores that are not finite."""
        if values.get("reward.nonfinite", 0.0) > 0 and isinstance(scores, torch.Tensor):
            self._fault("reward", {}, scores)

    def landed(self, step: int, values: Mapping[str, float]) -> None:
        """Take a step whose loss is not finite."""
        if values.get("policy.loss_nonfinite", 0.0) > 0:
            self._fault("loss", {"updated": True}, step=step)  # the optimizer has made its step by now

    def exception(self, error: BaseException, where: str) -> None:
        """Take what is still held, while an exception leaves the trainer; bounded in time."""
        if self._trace is not None:
            self._trace.stop()
        facts = {"error": f"{type(error).__name__}: {error}"[:500], "raised_in": where}
        device = self._agent.observer.model.device
        if device is None or device.type == "cpu":
            self._fault("exception", facts)
            return
        worker = threading.Thread(target=self._fault_quietly, args=("exception", facts), daemon=True)
        worker.start()
        worker.join(EXCEPTION_SECONDS)

    def close(self) -> None:
        """Stop a trace under way."""
        if self._trace is not None:
            self._trace.stop()

    # ---- taking

    def _fault_quietly(self, kind: str, facts: Mapping[str, Any]) -> None:
        try:
            self._fault(kind, facts)
        except Exception:  # noqa: BLE001 - a dead device; the trainer's own error is what counts
            return

    def _fault(self, kind: str, facts: Mapping[str, Any] = {}, scores: Any = None, *, step: int | None = None) -> None:
        step = self._agent.step if step is None else step
        family = "loss" if kind == "gradient" else kind  # one follows from the other
        last = self._done.get(family)
        if not self._on_anomaly or (last is not None and step - last < AGAIN_STEPS):
            return
        if any(step == at for other, at in self._done.items() if other != "reward" != family):
            return  # the same step holds the same evidence
        self._done[family] = step
        self._take(kind, facts, scores, step)

    def _take(self, reason: str, facts: Mapping[str, Any], scores: Any = None, step: int | None = None) -> str:
        """Write one file; gives its path, or raises `RuntimeError` saying why there is none."""
        started = time.perf_counter()
        step = self._agent.step if step is None else step
        if self._spool.full:
            raise RuntimeError("as many files as agent.capture_files allows have been written")
        contents = Contents(self._spool.room())
        contents.facts.update(self._facts(step, reason), **facts)
        if scores is not None:
            contents.add("reward/scores", scores)
        else:
            with torch.no_grad():
                self._fill(contents, step)
        contents.facts["left_out"] = contents.left_out
        path = self._spool.place(step, reason, ".safetensors")
        size = write(path, contents.tensors, contents.facts)
        self._told("capture", path, size, reason, step, time.perf_counter() - started)
        return str(path)

    def _fill(self, contents: Contents, step: int) -> None:
        agent, recent = self._agent, self.recent
        contents.add_batches(recent.batches(step), agent.settings.samples, recent.let_go(step))
        for micro, kept in enumerate(recent.kept(step)):
            for name, tensor in kept.items():
                contents.add(f"policy/{micro}/{name}", tensor)
        for moment, states in (("before", recent.before), ("after", rng.states())):
            for name, state in states.items():
                contents.add(f"rng/{moment}/{name}", state)
        contents.facts["numbers"] = recent.numbers(step)
        contents.facts["losses"] = [[_plain(loss), scale] for loss, scale in recent.losses(step)]
        pack = agent.observer.gradient
        named: tuple[str, ...] = ()
        if pack is not None:
            found = pack.finish([Part(pack.values.cpu().double(), pack.meta)])
            contents.facts["norm_preclip"] = _plain(found.values.get("gradient.norm_local", math.nan))
            named = tuple(name for one in found.nonfinite for name in one.names)
            contents.facts["nonfinite_gradients"] = list(named[:64])
        if agent.observer.model.replicated and agent.core.rank > 0:
            contents.omit("gradient", "replicas hold the same; see rank 0")
            return
        contents.add_gradients(agent.observer.model.gradients(), named)
        contents.add_weights(agent.observer.model.parameters)

    def _facts(self, step: int, reason: str) -> dict[str, Any]:
        agent = self._agent
        return {
            "what": "capture", "version": 1, "step": step, "rank": agent.core.rank, "world": agent.core.world,
            "reason": reason, "samples": agent.settings.samples, "wall_ns": time.time_ns(), "torch": torch.__version__,
            "clipped": agent.clipped, "mode": agent.mode.name.lower(),
        }  # fmt: skip

    def _memory(self, step: int) -> str:
        started = time.perf_counter()
        observer = self._agent.observer
        body = {**snapshot(self._model(), *observer.watched()), "step": step}
        return self._write_json("memory", step, body, started)

    def _write_json(self, what: str, step: int, body: Mapping[str, Any], started: float) -> str:
        if self._spool.full:
            raise RuntimeError("as many files as agent.capture_files allows have been written")
        text = json.dumps({"what": what, "version": 1, "rank": self._agent.core.rank, **body}, default=str)
        path = self._spool.place(step, what, ".json")
        draft = Path(f"{path}.new")
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
        self._told(what, path, len(text), "request", step, time.perf_counter() - started)
        return str(path)

    # ---- the trace

    def _begin_trace(self, tensors: Mapping[str, Any]) -> None:
        assert self._trace is not None
        came = first_nan_input(dict(tensors))
        self._came_in = f"{came} of the batch holds NaN before the forward" if came else ""
        self._trace.start()

    def _end_trace(self, step: int) -> None:
        trace = self._trace
        if trace is None or not trace.running:
            return  # not begun yet: `next_step` does
        trace.stop()
        self._trace = None
        self.recent.forget()
        found = trace.found
        told = self._came_in or (found.told() if found is not None else "no operation of this step made a NaN")
        body = {"step": step, "operations": trace.operations, "told": told, "came_in": self._came_in,
                "first": found.body() if found is not None else None}  # fmt: skip
        self._write_json("trace", step, body, time.perf_counter())
        self._agent.desk.evidence_taken(told)

    def _told(self, what: str, path: Path, size: int, reason: str, step: int, seconds: float) -> None:
        self._agent.guard.exempt(seconds)  # rare, and no reason to thin the sampling
        body = {"what": what, "path": str(path), "bytes": size, "reason": reason, "seconds": round(seconds, 4)}
        self._agent.event("capture", body, step=step)


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
