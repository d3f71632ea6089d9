"""Hands a bundle on as one tar.gz: as it is, or redacted for people outside."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_sentinel.incidents.bundle import Bundle, pack
from grpo_sentinel.incidents.model import Source
from grpo_sentinel.incidents.writing import write_bundle
from grpo_sentinel.records import EventRecord, Finding, Sample
from grpo_sentinel.scrub import REMOVED, scrubbed

Scrub = Callable[[str], str]
LEFT_OUT = "left out when the bundle was redacted"
_QUOTED = re.compile(r"""(?<!\w)(['"])((?:\\.|(?!\1)[^\n\\])+)\1(?!\w)""")


def export(bundle: Bundle, target: Path) -> None:
    """Write a bundle as tar.gz. Raises `OSError`."""
    pack(bundle.path, target)


def export_redacted(bundle: Bundle, target: Path, scrub: Scrub) -> None:
    """Write a copy without samples, tensors, logs and stacks; `scrub` cleans every text that stays.

    Host names become node-1, node-2 and so on; what stands in quotes with a blank in it may be a sample that an
    exception tells of. The numbers stay: they are what the copy is for. Raises `OSError`, and `SentinelError` when the
    bundle is damaged.
    """
    source = bundle.source()
    clean = _with_hosts(lambda text: scrub(_QUOTED.sub(_unquoted, text)), _hosts(source))
    with tempfile.TemporaryDirectory(prefix="grpo-sentinel-export-") as place:
        folder = Path(place) / source.about.name
        write_bundle(redacted(source, clean), folder, "off", redacted=True, seconds=600.0)
        pack(folder, target)


def redacted(source: Source, clean: Scrub) -> Source:
    """Give the same source with every text cleaned and everything that may hold samples left out."""

    def events() -> Iterator[EventRecord]:
        for event in source.events():
            yield replace(event, body=scrubbed(event.body, clean))

    def samples() -> Iterator[Sample]:
        for sample in source.samples():
            yield replace(
                sample, entity=clean(sample.entity), labels=scrubbed(sample.labels, clean),
                failed=scrubbed(sample.failed, clean),
            )  # fmt: skip

    return replace(
        source,
        about=replace(source.about, node=clean(source.about.node), title=clean(source.about.title)),
        findings=tuple(_finding(finding, clean) for finding in source.findings),
        transitions=tuple(_finding(finding, clean) for finding in source.transitions),
        events=events, samples=samples, run=scrubbed(source.run, clean), trainer=scrubbed(source.trainer, clean),
        sentinel=scrubbed(source.sentinel, clean), attached=(),
        missing={**scrubbed(source.missing, clean), **{one.name: LEFT_OUT for one in source.attached}},
    )  # fmt: skip


def _finding(finding: Finding, clean: Scrub) -> Finding:
    return replace(
        finding, message=clean(finding.message), subject=clean(finding.subject), why=clean(finding.why),
        remedies=tuple(map(clean, finding.remedies)), reference=clean(finding.reference),
    )  # fmt: skip


def _unquoted(match: re.Match[str]) -> str:
    return f"{match[1]}{REMOVED}{match[1]}" if " " in match[2] else match[0]


def _hosts(source: Source) -> list[str]:
    """Every host name that the bundle knows."""
    found = [source.about.node, str(_at(source.run, "node", "host"))]
    ranks = source.run.get("ranks")
    for status in ranks.values() if isinstance(ranks, dict) else ():
        found.append(str(_at(status, "identity", "host")))
    found += [sample.entity for sample in source.samples() if sample.source == "host"]
    return [name for name in dict.fromkeys(found) if name]


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key, "") if isinstance(value, dict) else ""
    return value


def _with_hosts(scrub: Scrub, hosts: list[str]) -> Scrub:
    numbers = {name: f"node-{number}" for number, name in enumerate(hosts, start=1)}
    if not numbers:
        return scrub
    pattern = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in sorted(numbers, key=len)[::-1]))
    return lambda text: scrub(pattern.sub(lambda match: numbers[match[0]], text))


__all__ = ["export", "export_redacted", "redacted"]
