"""One request on its way: how far the ranks have come with it, and what is done when they are late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from grpo_sentinel.config import HaltingConfig
from grpo_sentinel.halting.escalation import Escalation, TakeStacks
from grpo_sentinel.halting.evidence import EVIDENCE
from grpo_sentinel.halting.launcher import LauncherHandle
from grpo_sentinel.halting.progress import TERMINAL, progress_of
from grpo_sentinel.records import Action, HaltState
from grpo_sentinel.views import HaltStatus, RankStatus

HALTING = frozenset({Action.CHECKPOINT_AND_HALT, Action.HALT_NOW})
_GIVE_UP_SECONDS = 60.0  # after the last step of an escalation


class UnderWay:
    """Follows the request `request_id`, made at `since_ns`; `acted_ns` is when its ranks began to act, 0 before."""

    def __init__(
        self,
        config: HaltingConfig,
        launcher: LauncherHandle | None,
        take_stacks: TakeStacks | None,
        directory: Path,
        request_id: int,
        since_ns: int,
        acted_ns: int = 0,
    ) -> None:
        self._config = config
        self._escalation = Escalation(config, launcher, take_stacks, directory, request_id, since_ns)
        self._acted_ns = acted_ns  # the checkpoint's own deadline counts from here

    def follow(self, status: HaltStatus, ranks: Mapping[int, RankStatus], now_ns: int) -> HaltStatus:
        """Give the status as the ranks' acknowledgements make it; escalates what is overdue."""
        found = progress_of(status.request_id, status.requested_wall_ns, ranks)
        if found.state in (HaltState.VOTED, HaltState.CHECKPOINTING) and not self._acted_ns:
            self._acted_ns = found.wall_ns or now_ns
        state, detail = found.state, found.detail
        if state not in TERMINAL and status.action in EVIDENCE:
            waited_s = (now_ns - status.requested_wall_ns) / 1e9
            if waited_s >= self._config.acknowledge_seconds:
                state, detail = HaltState.FAILED, f"not taken within {self._config.acknowledge_seconds:g} s"
        elif state not in TERMINAL:
            self._escalate(status, ranks, now_ns)
            if self._escalation.exhausted and self._escalation.waited_s(now_ns) >= _GIVE_UP_SECONDS:
                state = HaltState.FAILED
        if self._escalation.said:
            detail = f"{detail}; {self._escalation.said}" if detail else self._escalation.said
        if state is HaltState.DONE:
            detail = found.detail
        if (state, found.step, detail) == (status.state, status.step, status.detail):
            return status
        return replace(status, state=state, step=found.step, detail=detail, updated_wall_ns=now_ns)

    def _escalate(self, status: HaltStatus, ranks: Mapping[int, RankStatus], now_ns: int) -> None:
        if self._acted_ns:
            since, seconds, what = self._acted_ns, self._config.checkpoint_seconds, "the checkpoint is not finished"
        else:
            since, seconds, what = status.requested_wall_ns, self._config.acknowledge_seconds, "not voted on"
        if now_ns - since >= seconds * 1e9 and ranks:
            self._escalation.advance(
                now_ns, ranks, what=f"{what} after {seconds:g} s", may_end_run=status.action in HALTING
            )


__all__ = ["HALTING", "UnderWay"]
