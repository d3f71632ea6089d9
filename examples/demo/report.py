"""Tell what a watched run came to, from its history and its checkpoints, and check it against what must be seen."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evidence
import launching
from expectations import HALTED, Expectation
from screen import Screen

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.history import HistoryReader, history_path
from grpo_sentinel.records import Finding, HaltState, Severity
from grpo_sentinel.views import HaltStatus


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold, in a sentence that is true or false."""

    text: str
    good: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What the history of a run holds, ready to be told."""

    run_id: str
    findings: tuple[Finding, ...]
    skipped: dict[int, list[int]]  # rank -> steps whose update was skipped
    last_steps: dict[int, int]  # rank -> last step it recorded
    halt: HaltStatus | None  # newest state of the newest request


def history_file(folder: Path) -> Path:
    """Name the history that the sidecar of a run in `folder` writes."""
    return history_path(folder / "state", socket.gethostname())


def read_story(folder: Path) -> Story:
    """Read the newest run of the history in `folder`; raises `SentinelError` when there is none."""
    with HistoryReader(history_file(folder)) as reader:
        run = reader.runs()[0].run_id
        skipped: dict[int, list[int]] = {}
        for event in reader.events(run, kind="skip"):
            skipped.setdefault(event.rank, []).append(event.step)
        steps = {rank: status.last_step for rank, status in reader.latest(run).ranks.items()}
        requests = reader.requests(run)
        return Story(run_id=run, findings=tuple(reader.findings(run)), skipped=skipped, last_steps=steps,
                     halt=requests[-1] if requests else None)  # fmt: skip


def truth(output_dir: Path) -> dict[str, Any]:
    """What the fault itself wrote down when it struck, {} for a healthy run."""
    files = sorted(output_dir.glob("fault-rank*.json"), reverse=True)
    return json.loads(files[0].read_text()) if files else {}


def show(screen: Screen, expected: Expectation, run: launching.Run, folder: Path) -> list[Check]:
    """Print findings, skips, halt and checkpoints of a watched run; return what was checked."""
    checks = [Check(f"launch returned {run.exit_code}, expected {' or '.join(map(str, expected.exit_codes))}",
                    run.exit_code in expected.exit_codes)]  # fmt: skip
    try:
        story = read_story(folder)
    except (SentinelError, IndexError) as error:
        screen.fact("history", f"cannot be read: {error}")
        return [*checks, Check(f"the history in {history_file(folder)} can be read", False)]
    injected = truth(run.output_dir)
    _show_findings(screen, story)
    checks += _check_findings(expected, story, injected)
    if expected.skips or story.skipped:
        steps = sorted({step for steps in story.skipped.values() for step in steps})
        screen.fact("skipped", f"updates of steps {steps} on ranks {sorted(story.skipped)}; none reached a weight")
        same = len({tuple(steps) for steps in story.skipped.values()}) == 1 and len(story.skipped) == launching.RANKS
        checks.append(Check(f"the same updates {steps} were skipped on both ranks", bool(steps) and same))
    if run.exit_code == HALTED or expected.exit_codes == (HALTED,):
        checks += _halt(screen, story, run)
    checks += _checkpoints(screen, expected, run)
    screen.fact("history", f"{history_file(folder)} (run {story.run_id})")
    return checks


def _show_findings(screen: Screen, story: Story) -> None:
    told = [finding for finding in story.findings if finding.severity > Severity.NOTE]
    if not told:
        screen.fact("findings", "none above a note")
    for finding in (f for f in told if not f.root_id):
        where = f"rank {', '.join(map(str, finding.ranks))}" if finding.ranks else "rank not known"
        subject = f", {finding.subject}" if finding.subject else ""
        screen.line()
        colour = "red" if finding.severity is Severity.CRITICAL else "yellow"
        screen.line(f"  {finding.severity.name.lower()}: {finding.message}", colour)
        screen.fact("where", f"{finding.layer} layer, {where}, since step {finding.onset_step}{subject}")
        screen.fact("rule", f"{finding.rule} -> {finding.action.name.lower().replace('_', '-')}")
        if finding.why:
            screen.fact("why", finding.why)
        if finding.remedies:
            screen.fact("try", finding.remedies[0])
        chain = [f.rule for f in told if f.root_id == finding.finding_id]
        if chain:
            screen.fact("then", ", ".join(dict.fromkeys(chain)))
    screen.line()


def _check_findings(expected: Expectation, story: Story, injected: dict[str, Any]) -> list[Check]:
    told = [finding for finding in story.findings if finding.severity > Severity.NOTE]
    if not expected.layers:
        names = ", ".join(sorted({finding.rule for finding in told})) or "none"
        return [Check(f"no finding above a note (seen: {names})", not told)]
    step, subject = int(injected.get("step", 0)), injected.get("subject", "")
    hits = [finding for finding in told if finding.layer in expected.layers]
    hits = [f for f in hits if expected.rank is None or f.ranks == (expected.rank,)]
    hits = [f for f in hits if not expected.names_subject or subject in (f.subject, *f.message.split())]
    early = [f for f in told if f.step < step - 1]  # a rank killed early in a step was last seen before it
    wanted = f"a finding in the {' or '.join(expected.layers)} layer"
    wanted += f" names rank {expected.rank}" if expected.rank is not None else ""
    wanted += f" and {subject}" if expected.names_subject else ""
    return [
        Check(f"{wanted}, as injected at step {step}", bool(hits)),
        Check(f"nothing was found before the fault at step {step}", not early),
    ]


def _halt(screen: Screen, story: Story, run: launching.Run) -> list[Check]:
    halt = story.halt
    if halt is None:
        return [Check("a rule asked for checkpoint-and-halt", False)]
    path = Path(halt.detail) if halt.detail else run.output_dir
    screen.fact("halt", f"asked by {halt.requested_by}: {halt.reason}")
    last = (f"rank {rank} after step {step}" for rank, step in sorted(story.last_steps.items()))
    screen.fact("stopped", ", ".join(last))
    screen.fact("checkpoint", str(path))
    steps = set(story.last_steps.values())
    done = halt.state is HaltState.DONE and (path / "model.safetensors").is_file()
    return [
        Check(f"both ranks stopped at the same step {sorted(steps)}",
              len(steps) == 1 and len(story.last_steps) == launching.RANKS),
        Check(f"the request was carried out: {halt.state.name.lower()}, checkpoint {path.name}", done),
    ]  # fmt: skip


def _checkpoints(screen: Screen, expected: Expectation, run: launching.Run) -> list[Check]:
    kept = evidence.pinned(run.output_dir)
    for one in kept:
        screen.fact("pinned", f"{one.path}, from before the onset")
    saved = evidence.checkpoints(run.output_dir)
    found = [*kept, *saved]
    bad = sum(one.nonfinite for one in found)
    values = sum(one.values for one in found)
    steps = ", ".join(str(one.step) for one in saved)
    copies = f" and the pinned copy of step {', '.join(str(one.step) for one in kept)}" if kept else ""
    counted = f"{bad:,} of {values:,} weights and moments are not finite"
    screen.fact("on disk", f"checkpoints of steps {steps}{copies}: {counted}")
    if not expected.checkpoints_finite:
        return []
    return [Check(f"{len(found)} checkpoints read back, {bad} non-finite values in them", bool(found) and not bad)]


def compare(screen: Screen, name: str, plain: launching.Run, run: launching.Run) -> list[Check]:
    """Set the run without grpo-sentinel beside the one with it; return what was checked."""
    screen.title("Side by side")
    both = [evidence.checkpoints(one.output_dir) for one in (plain, run)]
    rows = [("", "without", "with grpo-sentinel")]
    rows.append(("exit code", *(str(one.exit_code) for one in (plain, run))))
    rows.append(("steps logged", *(str(one.steps) for one in (plain, run))))
    rows.append(("ended by", *((one.error or "itself")[:44] for one in (plain, run))))
    rows.append(("newest checkpoint", *(found[-1].path.name if found else "none" for found in both)))
    shares = (f"{found[-1].nonfinite:,} of {found[-1].values:,}" if found else "-" for found in both)
    rows.append(("non-finite in it", *shares))
    for title, without, with_it in rows:
        screen.line(f"  {title:<18}  {without:<46}  {with_it}", *([] if title else ["bold"]))
    if name == "none":
        difference = evidence.first_difference(plain.output_dir, run.output_dir)
        steps = len(evidence.logged(run.output_dir))
        text = f"loss, rewards and every other logged number of {steps} steps and the weights are bit-identical"
        return [Check(text if difference is None else f"{text}: {difference}", difference is None)]
    if name in ("grad_nan", "grad_inf", "loss_nan", "reduced_grad_nan"):
        poisoned = both[0][-1].nonfinite if both[0] else 0
        return [
            Check(f"without grpo-sentinel the same run crashed (exit code {plain.exit_code})", plain.exit_code != 0),
            Check(f"... and left {poisoned:,} non-finite values in its newest checkpoint", poisoned > 0),
        ]
    return []


def attach_lines(screen: Screen) -> None:
    """Print how to attach it to one's own trainer."""
    screen.title("Attach it to your own trainer")
    screen.line("  pip install '.[trl]'    # in this checkout, into the trainer's environment")
    screen.line("  grpo-sentinel launch -- torchrun --nproc_per_node 8 your_train.py    # no line of code, or in code:")
    screen.line("  import grpo_sentinel; grpo_sentinel.attach(trainer)                  # before trainer.train()")
