"""Names, labels and numbers of the Prometheus text formats; no state, no I/O.

    gauge    grpo_sentinel_policy_loss{run_id="r",node="n",rank="0",role="trainer"} 0.5
    counter  grpo_sentinel_optimizer_skipped_updates_total{...} 3.0
    info     grpo_sentinel_build_info{version="0.1.0"} 1.0

Text 0.0.4 and OpenMetrics 1.0.0 differ in the metadata names of counters and infos, in "# EOF", and in that
OpenMetrics refuses counters that are not finite.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from grpo_sentinel.catalog import SIGNALS, Signal, split_name

PREFIX = "grpo_sentinel_"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MAX_LABEL_CHARACTERS = 200
_SUFFIX = {"gauge": "", "counter": "_total", "info": "_info"}
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\x85\u2028\u2029]")
_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")
_RENAMED = {
    "device.gpu_count": "device_gpus",  # `_count` is a histogram's
    "reward.model_bits": "reward_model_precision",  # whoever says bits is asked for bytes
}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: `name` without the suffix of its kind (gauge, counter or info)."""

    name: str
    kind: str
    help: str

    @property
    def sample_name(self) -> str:
        return self.name + _SUFFIX[self.kind]

    @lru_cache(maxsize=1024)  # noqa: B019 - families are few and live as long as the process
    def header(self, openmetrics: bool) -> str:
        """Write the HELP and TYPE lines."""
        name = self.name if openmetrics else self.sample_name
        kind = "gauge" if self.kind == "info" and not openmetrics else self.kind
        text = self.help.replace("\\", "\\\\").replace("\n", "\\n")
        if openmetrics:
            text = text.replace('"', '\\"')
        return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def family_of(signal: Signal) -> Family:
    """Name the metric of a catalogued signal: `grpo_sentinel_<layer>_<signal>`."""
    base = _RENAMED.get(signal.name, signal.name.replace(".", "_"))
    return Family(PREFIX + base, signal.kind, signal.help + (f" ({signal.unit})" if signal.unit else ""))


FAMILIES: dict[str, Family] = {name: family_of(signal) for name, signal in SIGNALS.items()}
"""Metric of every signal in the catalogue."""

USER_SIGNAL = Family(PREFIX + "user_signal", "gauge", "a signal of the user's own that the catalogue does not know")


def family_and_labels(name: str) -> tuple[Family, dict[str, str]]:
    """Find the metric of a concrete signal name and the label of its dimension; unknown signals share one metric."""
    base, value = split_name(name)
    family = FAMILIES.get(base)
    if family is None:
        return USER_SIGNAL, {"signal": name}
    return family, {(SIGNALS[base].dimension or "label"): value} if value else {}


def labels_text(labels: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """Write `{a="x",b="y"}`; names are made legal, values escaped, "" for none."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    inner = ",".join(f'{label_name(name)}="{escape(value)}"' for name, value in pairs)
    return f"{{{inner}}}" if inner else ""


@lru_cache(maxsize=1024)
def label_name(text: str) -> str:
    """Make a legal label name of any text."""
    safe = _NOT_A_NAME.sub("_", text)
    return safe if safe and not safe[0].isdigit() else f"_{safe}"


@lru_cache(maxsize=4096)
def escape(text: str) -> str:
    """Escape a label value; control characters become `?`, what is too long is cut and told apart by a digest."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) > MAX_LABEL_CHARACTERS:
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        text = f"{text[: MAX_LABEL_CHARACTERS - 9]}~{digest}"
    return _CONTROL.sub("?", text).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number_text(value: float) -> str:
    """Write a number as both formats want it: NaN, +Inf, -Inf."""
    if value - value == 0.0:
        return repr(value)
    return "NaN" if value != value else ("+Inf" if value > 0 else "-Inf")


_FLAT = re.compile(r"^([^\[\]]+)(?:\[(.*)\])?$", re.DOTALL)


def flat_name(key: str) -> tuple[str, dict[str, str]]:
    """Take a flat name of the sentinel's own health apart: `sink_up[sink=history]` -> name and labels."""
    match = _FLAT.match(key)
    base, inner = (match.group(1), match.group(2)) if match else (key, None)
    labels: dict[str, str] = {}
    for part in (inner or "").split(","):
        name, separator, value = part.partition("=")
        if part:
            labels[label_name(name) if separator else "name"] = value if separator else part
    return _NOT_A_NAME.sub("_", base), labels
