"""The names that /metrics may show, taken from the code, and those that an expression uses."""

from __future__ import annotations

import re
from collections.abc import Iterator

import promql_parser
from recording import recorded_names

from grpo_sentinel.sinks import prometheus, run_metrics
from grpo_sentinel.sinks.exposition import FAMILIES, USER_SIGNAL, Family

OF_PROMETHEUS = {"up", "ALERTS", "ALERTS_FOR_STATE"}


def exported() -> set[str]:
    """Every metric of the exposition; the sidecar's own health has names made at run time, taken from a real run."""
    families = [*FAMILIES.values(), USER_SIGNAL]
    families += [
        item for module in (run_metrics, prometheus) for item in vars(module).values() if isinstance(item, Family)
    ]
    daemon = {name for name in recorded_names() if name.startswith("grpo_sentinel_daemon_")}
    return {family.sample_name for family in families} | daemon


def used(expression: str) -> set[str]:
    """The metrics that an expression selects; raises ValueError when it is no PromQL."""
    return {name for name in _selected(promql_parser.parse(expression)) if name}


def _selected(node: object) -> Iterator[str | None]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node.name or next((m.value for m in node.matchers.matchers if m.name == "__name__"), None)
    for part in ("expr", "lhs", "rhs", "param", "vector_selector"):
        child = getattr(node, part, None)
        if child is not None and not isinstance(child, (str, float, int)):
            yield from _selected(child)
    for child in getattr(node, "args", None) or []:
        yield from _selected(child)


def filled(expression: str, values: dict[str, str]) -> str:
    """Put values in place of a dashboard's variables; an unknown variable is an error."""
    for name, value in sorted(values.items(), key=lambda item: -len(item[0])):
        expression = re.sub(rf"\$\{{{name}(:\w+)?\}}|\${name}\b", value.replace("\\", r"\\"), expression)
    left = re.findall(r"\$\w+|\$\{[^}]+\}", expression)
    assert not left, f"unknown variable {left[0]} in {expression}"
    return expression
