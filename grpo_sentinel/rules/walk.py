"""The walk backwards, from the symptom down to the data: what was looked at, what was fine, what was not, what unseen.

    optimizer ─▶ gradient ─▶ policy ─▶ reward ─▶ data        and beside them: memory, device, time, sentinel

At every layer the same questions: are its numbers finite, do shapes, devices and dtypes fit, do its levels keep their
bounds and baselines. A question that no rule could judge is "not seen", which is not "fine".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_sentinel.records import Finding, Severity
from grpo_sentinel.rules.rule import Rule

ORDER = ("optimizer", "gradient", "policy", "reward", "data", "memory", "device", "time", "sentinel")
QUESTIONS = ("numbers", "shapes", "devices", "dtypes", "levels")
WRONG, FINE, PARTLY, UNSEEN = "wrong", "fine", "fine as far as seen", "not seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """One layer of the walk."""

    layer: str
    wrong: tuple[Finding, ...]  # by onset
    noted: tuple[Finding, ...]  # worth knowing, nothing wrong: by onset
    fine: tuple[str, ...]  # rules that judged and found nothing wrong
    unseen: Mapping[str, str]  # rule -> why it could not judge
    questions: Mapping[str, str]  # question -> wrong, fine, fine as far as seen, not seen

    @property
    def state(self) -> str:
        """The layer in two words."""
        if self.wrong:
            return WRONG
        if not self.fine:
            return UNSEEN
        return PARTLY if self.unseen else FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """All stops in the order of the walk, and where it ends: the root of the earliest and gravest chain."""

    stops: tuple[Stop, ...]
    root: Finding | None
    checkpoint: str = ""  # newest that is known from before the first wrong step; its path

    @property
    def last_healthy_step(self) -> int | None:
        """The step before the first wrong one; None when nothing is wrong, 0 when nothing was ever right."""
        return None if self.root is None else max(0, self.root.onset_step - 1)

    @property
    def conclusion(self) -> str:
        """One sentence: what was wrong first, and what below it was seen."""
        if self.root is None:
            dark = [stop.layer for stop in self.stops if stop.state == UNSEEN]
            return "nothing is wrong as far as seen" + (f"; not seen at all: {', '.join(dark)}" if dark else "")
        places = [stop.layer for stop in self.stops]
        chain = places[: places.index("data") + 1]
        below = self.stops[places.index(self.root.layer) + 1 : len(chain)] if self.root.layer in chain else ()
        text = f"wrong first: {self.root.layer}, since step {self.root.onset_step}: {self.root.message}"
        if below:
            text += "; below it " + ", ".join(f"{stop.layer} {stop.state}" for stop in below)
        return f"{text}; last healthy step {self.last_healthy_step}, checkpoint {self.checkpoint or 'not known'}"


def walk(
    rules: Iterable[Rule],
    findings: Iterable[Finding],
    abstaining: Mapping[str, str],
    checkpoints: Iterable[tuple[int, str]] = (),
) -> Walk:
    """Sort what the rules said into layers.

    `findings`: newest version of each, resolved ones too if they belong to the story. `abstaining`: rule -> reason,
    as `Engine.abstaining()` gives it. `checkpoints`: step and path, oldest first, as `Engine.checkpoints` gives them.
    Rules that neither found nor abstained count as having judged.
    """
    told: dict[str, list[Finding]] = {}
    for finding in findings:
        told.setdefault(finding.rule, []).append(finding)
    by_layer: dict[str, list[Rule]] = {layer: [] for layer in ORDER}
    for rule in rules:
        by_layer.setdefault(rule.layer, []).append(rule)
    stops = tuple(_stop(layer, members, told, abstaining) for layer, members in by_layer.items())
    root = _root([finding for some in told.values() for finding in some if finding.severity > Severity.NOTE])
    before = [path for step, path in checkpoints if root is not None and step < root.onset_step]
    return Walk(stops=stops, root=root, checkpoint=before[-1] if before else "")


def _stop(layer: str, rules: Iterable[Rule], told: Mapping[str, list[Finding]], abstaining: Mapping[str, str]) -> Stop:
    wrong: list[Finding] = []
    noted: list[Finding] = []
    fine: list[str] = []
    unseen: dict[str, str] = {}
    answers: dict[str, list[str]] = {question: [] for question in QUESTIONS}
    for rule in rules:
        grave = [finding for finding in told.get(rule.name, ()) if finding.severity > Severity.NOTE]
        noted += [finding for finding in told.get(rule.name, ()) if finding.severity is Severity.NOTE]
        if grave:
            wrong += grave
            answer = WRONG
        elif rule.name in told:
            fine.append(rule.name)
            answer = FINE
        elif rule.name in abstaining:
            unseen[rule.name] = abstaining[rule.name]
            answer = UNSEEN
        else:
            fine.append(rule.name)
            answer = FINE
        answers[question_of(rule)].append(answer)
    questions = {question: _sum(given) for question, given in answers.items() if given}
    return Stop(
        layer=layer,
        wrong=_by_onset(wrong),
        noted=_by_onset(noted),
        fine=tuple(fine),
        unseen=unseen,
        questions=questions,
    )


def _by_onset(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda one: (one.onset_step, -int(one.severity), one.finding_id)))


def question_of(rule: Rule) -> str:
    """Which of the QUESTIONS a rule asks, by what it reads."""
    for word, question in (("shape", "shapes"), ("dtype", "dtypes"), ("device_mismatch", "devices")):
        if any(word in signal.partition(".")[2] for signal in rule.signals):
            return question
    return "numbers" if rule.detect.get("kind") == "nonfinite" or "nonfinite" in rule.name else "levels"


def _sum(answers: Iterable[str]) -> str:
    given = set(answers)
    if WRONG in given:
        return WRONG
    if FINE in given:
        return PARTLY if UNSEEN in given else FINE
    return UNSEEN


def _root(findings: list[Finding]) -> Finding | None:
    """The root of the gravest chain, the earliest of equals."""
    known = {finding.finding_id: finding for finding in findings}
    gravity: dict[str, int] = {}
    for finding in findings:
        head = finding.root_id if finding.root_id in known else finding.finding_id
        gravity[head] = max(gravity.get(head, 0), int(finding.severity))
    heads = sorted(gravity, key=lambda head: (-gravity[head], known[head].onset_step, ORDER.index(known[head].layer)))
    return known[heads[0]] if heads else None


def as_json(walk: Walk) -> dict[str, Any]:
    """Give the walk for programs and the page: findings by id, which the reader has already."""
    return {
        "conclusion": walk.conclusion,
        "root": walk.root.finding_id if walk.root else "",
        "last_healthy_step": walk.last_healthy_step,
        "checkpoint": walk.checkpoint,
        "layers": [
            {
                "layer": stop.layer, "state": stop.state, "questions": dict(stop.questions),
                "wrong": [finding.finding_id for finding in stop.wrong],
                "noted": [finding.finding_id for finding in stop.noted], "fine": list(stop.fine),
                "not_seen": dict(stop.unseen),
            }
            for stop in walk.stops
        ],
    }  # fmt: skip


def as_lines(walk: Walk) -> list[str]:
    """Give the walk for a person, one line a layer, its findings and blind spots under it."""
    out = [f"walk backwards: {walk.conclusion}"]
    for stop in walk.stops:
        looked = len(stop.fine) + len({finding.rule for finding in stop.wrong})
        out.append(f"  {stop.layer}: {stop.state} ({looked} of {looked + len(stop.unseen)} rules could judge)")
        if stop.questions:
            out.append("    " + "; ".join(f"{question} {answer}" for question, answer in stop.questions.items()))
        out += [f"    ✗ since step {finding.onset_step}: {finding.message} [{finding.rule}]" for finding in stop.wrong]
        out += [f"    · step {finding.onset_step}: {finding.message} [{finding.rule}]" for finding in stop.noted]
        reasons: dict[str, list[str]] = {}
        for rule, reason in stop.unseen.items():
            reasons.setdefault(reason, []).append(rule)
        for reason, names in list(reasons.items())[:4]:
            out.append(f"    ? {', '.join(names[:4])}{' …' if len(names) > 4 else ''}: {reason}")
        if len(reasons) > 4:
            rest = sum(len(names) for names in list(reasons.values())[4:])
            out.append(f"    ? {rest} more for {len(reasons) - 4} other reasons, all in --json")
    return out


__all__ = ["ORDER", "QUESTIONS", "Stop", "Walk", "as_json", "as_lines", "question_of", "walk"]
