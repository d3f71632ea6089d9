"""The process that `apart` starts: it runs one check of a user's code, and tells what it does over a pipe."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight import telling
from grpo_sentinel.preflight.data_shapes import Fields
from grpo_sentinel.preflight.gradients import GradientOptions, check_gradients
from grpo_sentinel.preflight.policy import PolicyOptions, check_policy
from grpo_sentinel.preflight.report import CheckReport
from grpo_sentinel.preflight.reward import RewardOptions, check_reward

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run what the first argument asks for; everything told, the report at last, goes to the descriptor it names."""
    request = json.loads(sys.argv[1])
    end = int(request["descriptor"])
    os.set_inheritable(end, False)  # processes that the reward starts must not keep it open
    _end_with_parent(int(request["parent"]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process

    def send(told: Mapping[str, Any]) -> None:
        content = memoryview(json.dumps(told, default=_plain).encode("ascii") + b"\n")
        while content:
            content = content[os.write(end, content) :]

    telling.listen(send, careful=bool(request["careful"]))
    try:
        report = _CHECKS[request["check"]](request)
        send({"kind": "report", "report": report.to_json()})
    except SentinelError as error:
        send({"kind": "refused", "message": str(error)})
    except BaseException:  # noqa: BLE001 - this process ends here in any case
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)  # threads that a reward left behind, hanging ones too, are nobody's any more


def _reward(request: Mapping[str, Any]) -> CheckReport:
    return check_reward(request["target"], request["data"], RewardOptions(**_fields(request["options"])))


def _policy(request: Mapping[str, Any]) -> CheckReport:
    return check_policy(request["target"], PolicyOptions(**_fields(request["options"])))


def _gradients(request: Mapping[str, Any]) -> CheckReport:
    return check_gradients(request["target"], GradientOptions(**_fields(request["options"])))


_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], CheckReport]] = {
    "reward": _reward, "policy": _policy, "gradients": _gradients,
}  # fmt: skip


def _fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as they were, after JSON made lists of tuples."""
    return {**_tuples(options), "fields": Fields(**_tuples(options["fields"]))}


def _tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def _end_with_parent(parent: int) -> None:
    """A reward that hangs must not outlive the check (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


if __name__ == "__main__":
    main()
