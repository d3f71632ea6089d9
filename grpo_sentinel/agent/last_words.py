"""What is said of an exception that is about to leave the trainer: its evidence, the state of the weights, its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from grpo_sentinel.agent import arguments
from grpo_sentinel.agent.guard import short_traceback
from grpo_sentinel.agent.last_look import nonfinite_weights

if TYPE_CHECKING:
    from grpo_sentinel.agent.agent import Agent

_NAMES = 16  # of weights, in one event


class LastWords:
    """Tells each exception once, however many of the trainer's frames it passes."""

    def __init__(self, agent: Agent) -> None:
        self.interrupted: Callable[[], None] = _nobody  # notes for the sidecar that Ctrl-C came here
        self._agent = agent
        self._told = 0

    def tell(self, error: BaseException, where: str) -> None:
        """Capture, look at the weights, send the event. Synchronises: nothing else will."""
        agent, guard = self._agent, self._agent.guard
        if self._told == id(error):
            return
        self._told = id(error)  # not the error itself: its frames hold the user's tensors
        if isinstance(error, KeyboardInterrupt):
            if agent.capture is not None:
                agent.capture.close()
            guard.essential("interrupt", self.interrupted)  # a person ends the run: no fault
            return
        if agent.capture is not None:
            guard.essential("capture", agent.capture.exception, error, where)
        if agent.collectives is not None:
            guard.run("collectives", agent.collectives.write)
        guard.essential("last look", self._look_at_weights)
        body = {"type": type(error).__name__, "message": arguments.text(error)[:800], "where": where}
        phase = agent.phases.of(error).name.lower()
        agent.event("exception", {**body, "phase": phase, "traceback": short_traceback(error)[-900:]})

    def _look_at_weights(self) -> None:
        names = nonfinite_weights(self._agent.observer.model.parameters)
        if names:
            body = {"where": "weights", "names": names[:_NAMES], "count": len(names), "seen_at": "exception"}
            self._agent.event("nonfinite", body)


def _nobody() -> None:
    """Tell nobody: there is no sidecar's folder."""
