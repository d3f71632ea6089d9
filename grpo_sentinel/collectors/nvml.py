"""Collects GPUs: asks a child process that talks to NVML, and gives it up when it hangs.

    idle --due--> asked --answer--> samples
                    |---timeout---> child killed, every signal of every known GPU failed with the reason
                    '---ended-----> the same, with how it ended

Unknown is not healthy: a GPU that cannot be read stays in the samples, as failed.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_sentinel.clock import Clock
from grpo_sentinel.collectors.child import Child, ChildGone
from grpo_sentinel.records import Sample

if TYPE_CHECKING:
    from grpo_sentinel.config import NvmlConfig

NODE = "nvml"
"""Entity of the sample about NVML as a whole: number of GPUs, time of a reading, or why there is none."""

_MODULE = "grpo_sentinel.collectors.nvml_reader"
_RETRY_SECONDS = 60.0  # after NVML as a whole has failed: most hosts without a driver never get one


_DEVICES = ("nvidia*", "dxg", "nvgpu*")  # of a driver, of WSL, of Jetson boards

log = logging.getLogger(__name__)


def nvidia_devices(folder: Path = Path("/dev")) -> list[str]:
    """Name the device files of NVIDIA GPUs that this process can see."""
    return sorted(path.name for pattern in _DEVICES for path in folder.glob(pattern))


class NvmlCollector:
    """Gives a sample per GPU, per MIG slice and one of the node, every `interval_seconds`."""

    name = "nvml"

    def __init__(self, config: NvmlConfig, clock: Clock) -> None:
        self._interval_ns = round(config.interval_seconds * 1e9)
        self._retry_ns = round(max(config.interval_seconds, _RETRY_SECONDS) * 1e9)
        self._timeout_seconds = config.timeout_seconds
        self._clock = clock
        self._child: Child | None = None
        self._given_up: Child | None = None  # killed, and not gone yet
        self._asked_ns: int | None = None
        self._due_ns = clock.monotonic_ns()
        self._known: dict[str, Sample] = {}  # last good sample by entity
        self._xids: dict[str, Counter[int]] = {}  # entity -> how often each Xid number came
        self._newest_xid: dict[str, int] = {}
        self.problem = ""  # why GPUs cannot be read at the moment, one sentence
        self.absent = False  # there is no GPU to read: the problem is that of any machine without one

    def poll(self, wait_seconds: float = 0.0) -> Sequence[Sample]:
        """Return the reading that has come in, or what failed; mostly nothing.

        Never blocks unless `wait_seconds` says how long a reading under way may be waited for. Never raises.
        """
        now_ns = self._clock.monotonic_ns()
        if self._asked_ns is None and now_ns >= self._due_ns:
            failure = self._ask(now_ns)
            if failure:
                return self._fail(failure)
        if self._asked_ns is None or self._child is None:
            return ()
        try:
            line = self._child.answer(wait_seconds)
        except ChildGone as ending:
            return self._fail(f"the NVML reader ended {ending}; GPUs are not watched until it is up again.")
        if line is not None:
            self._asked_ns = None
            return self._take(line)
        if now_ns - self._asked_ns >= self._timeout_seconds * 1e9:
            return self._fail(f"NVML gave no answer in {self._timeout_seconds:g} s: the driver or a GPU hangs.")
        return ()

    def close(self) -> None:
        """End the child; one that hangs in the kernel is left behind, killed."""
        if self._child is not None:
            self._give_up()
        if self._given_up is not None:
            self._given_up.join(0.5)

    # ---- asking

    def _ask(self, now_ns: int) -> str:
        """Send the request for a reading; returns why not."""
        self._due_ns = now_ns + self._interval_ns
        if self._given_up is not None:
            if not self._given_up.reaped():  # a second one would hang in the same place
                return f"NVML still hangs: process {self._given_up.pid} was killed and does not go."
            self._given_up = None
        try:
            self._child = self._child or Child(_MODULE)
            self._child.ask()
        except OSError as error:
            return f"the NVML reader cannot be started ({error.strerror}); GPUs are not watched."
        except ChildGone as ending:
            return f"the NVML reader ended {ending}; GPUs are not watched until it is up again."
        self._asked_ns = now_ns
        return ""

    def _give_up(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._given_up, self._child = self._child, None
        self._asked_ns = None

    # ---- answers

    def _take(self, line: str) -> list[Sample]:
        try:
            answer = json.loads(line)
        except ValueError:
            return self._fail("the NVML reader answered something that is not JSON.")
        if "error" in answer:
            self._due_ns = self._clock.monotonic_ns() + self._retry_ns
            absent = not self._known and not nvidia_devices()
            if absent and not self.absent:
                log.info("no NVIDIA device is visible here: GPUs are not watched")
            self.absent = absent
            return self._fail(str(answer["error"]))
        self.problem, self.absent = "", False
        for entity, number in answer["xids"]:
            self._xids.setdefault(entity or NODE, Counter())[number] += 1
            self._newest_xid[entity or NODE] = number
        samples = [self._sample(fields) for fields in answer["samples"]]
        self._known = {sample.entity: sample for sample in samples}
        return samples

    def _sample(self, fields: Mapping[str, Any]) -> Sample:
        entity, values = fields["entity"], dict(fields["values"])
        unsupported = tuple(fields["unsupported"])
        if "device.gpu_lost" in values and "device.xid_errors" not in unsupported:
            values["device.xid_errors"] = 0.0
        if entity in self._xids:
            seen = self._xids[entity]
            values |= {f"device.xid_events[{number}]": float(count) for number, count in seen.items()}
            values["device.xid_errors"] = float(sum(seen.values()))
            values["device.xid_last"] = float(self._newest_xid[entity])
        return Sample(
            source="nvml",
            entity=entity,
            wall_ns=self._clock.wall_ns(),
            values=values,
            labels=fields["labels"],
            unsupported=unsupported,
            failed=fields["failed"],
        )

    def _fail(self, reason: str) -> list[Sample]:
        """Report every signal that was there before as failed, and start anew next time."""
        self.problem = reason
        self._give_up()
        wall_ns = self._clock.wall_ns()
        entities = {NODE: ("device.gpu_count",)} | {entity: tuple(was.values) for entity, was in self._known.items()}
        return [
            Sample(
                source="nvml",
                entity=entity,
                wall_ns=wall_ns,
                values={},
                labels=self._known[entity].labels if entity in self._known else {},
                unsupported=self._known[entity].unsupported if entity in self._known else (),
                failed=dict.fromkeys(signals, reason),
            )
            for entity, signals in entities.items()
        ]
