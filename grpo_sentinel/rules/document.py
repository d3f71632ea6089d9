"""Writes docs/rules.md from the rules themselves, so that it cannot differ from them.

python -m grpo_sentinel.rules.document docs/rules.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from grpo_sentinel.catalog import LAYERS
from grpo_sentinel.rules.detectors import KINDS, detector_class
from grpo_sentinel.rules.load import load_rules, read_mapping
from grpo_sentinel.rules.message import in_general
from grpo_sentinel.rules.profiles import builtin_profiles
from grpo_sentinel.rules.rule import Rule

_GENERATED = "<!-- written by `python -m grpo_sentinel.rules.document docs/rules`: edit the rules, not this file -->"
_HEAD = (
    "# How rules work\n\n"
    + _GENERATED
    + """

A rule is data: signals, a typed detector with parameters, how long it must last (`for`: `n of m` judged steps), an
action, why it matters, what to try, where it comes from, and a false-alarm budget per 1,000 healthy steps. A **bound**
must hold exactly and needs no baseline; while one is broken, no baseline learns. A step in which a signal is missing
changes nothing: neither alarm nor all-clear; `status` lists what abstains and why. A finding that fires is told again,
under the same `finding_id`, when its rank, parameter or root becomes known, and once more when it resolves.

Change a rule in the configuration (`for`, `resolve_after`, `cooldown`, every detector parameter, nested ones by path):

```yaml
rules:
  disabled: [groups_saturated]
  override:
    kl_high: {severity: critical, parameters: {max: 0.5, for: 5}}
    kl_blow_up: {parameters: {of.0.max: 0.8}}
    grad_norm_above_limit: {enabled: true, action: checkpoint-and-halt, parameters: {max: 100}}
  files: [my-rules.yaml]
```

A rule of one's own has the same format as the built-in ones:

```yaml
layer: reward
rules:
  - name: accuracy_below_a_tenth
    severity: warning
    detect: {kind: bound, signal: "reward.func_mean[accuracy]", min: 0.1}
    for: 20 of 25
    message: "accuracy reward is {value}, below {limit}"
    why: The warm start is gone.
    remedies: ["Go back to the checkpoint before the onset."]
```

Message fields: value, percent, limit, step, onset, ranks, subject, signal, detail. `{value:row has|rows have}` gives
the number with words that agree with it, `{ranks:comes|come}` the ranks with theirs. A quantity is a signal, a number,
or several joined by `+ - * /` between blanks, left to right. `signal[*]` runs the rule once per label.

Keys of OpenRLHF are written as its flat arguments; versions that group them take `--actor.adam.lr` for
`--actor_learning_rate`, `--algo.kl.init_coef` for `--init_kl_coef`, `--rollout.n_samples_per_prompt`,
`--rollout.max_new_tokens` for `--generate_max_len`, `--train.micro_batch_size` for `--micro_train_batch_size`,
`--actor.eps_clip_low_high`, `--reward.remote_url` for `--remote_rm_url`, `--vllm.gpu_memory_utilization`, and so on.
verl's are given from `actor_rollout_ref` on: `actor.optim.lr` is `actor_rollout_ref.actor.optim.lr`.
"""
)

_MORE = "## More\n\n[Which published checks are rules here, and which are not and why](coverage.md)\n"


def pages() -> dict[str, str]:
    """Give all pages by file name: README.md, and one for every layer."""
    rules = load_rules()
    layers = {f"{layer}.md": _layer(layer, rules) for layer in LAYERS}
    front = "\n".join([_HEAD, _index(rules), _detectors(), _profiles(), _MORE])
    return {"README.md": front, "coverage.md": _coverage(rules), **layers}


def uncovered() -> dict[str, dict[str, str]]:
    """Give what is no rule here, by kind of reason: `{kind: {"D05 learnability index": why}}`."""
    folder = resources.files("grpo_sentinel.rules").joinpath("catalogue")
    found: dict[str, dict[str, str]] = read_mapping(folder.joinpath("uncovered.yaml").read_text("utf-8"), "uncovered")
    return found


def covered(rules: Iterable[Rule]) -> dict[str, list[str]]:
    """Give the rules that name an entry of the sources in their reference, by entry; `P18 to P24` names all between."""
    out: dict[str, list[str]] = {}
    for rule in rules:
        for first, last in re.findall(r"\b([A-Z]\d\d)(?: to ([A-Z]\d\d))?", rule.reference):
            numbers = range(int(first[1:]), int((last or first)[1:]) + 1)
            for number in numbers:
                out.setdefault(f"{first[0]}{number:02d}", []).append(rule.name)
    return out


def _coverage(rules: Iterable[Rule]) -> str:
    lines = [
        "# Which published checks are rules here, and which are not",
        "",
        _GENERATED,
        "",
        "Letters: D data, R reward, P policy, G gradient, O optimizer, M memory, V device, H hang and straggler, X",
        "across ranks, S the sentinel itself. A rule names the entries that it stands for in its `reference`.",
        "",
        "## Rules by entry",
        "",
    ]
    for entry, names in sorted(covered(rules).items()):
        lines.append(f"- {entry}: {', '.join(f'`{name}`' for name in dict.fromkeys(names))}")
    for kind, entries in uncovered().items():
        lines += ["", f"## Not a rule: {kind}", ""]
        lines += [f"- **{name}**: {why}" for name, why in entries.items()]
    return "\n".join(lines) + "\n"


def _index(rules: Iterable[Rule]) -> str:
    known = list(rules)
    rows = ["## By layer", ""]
    for layer in LAYERS:
        names = [f"[{rule.name}]({layer}.md#{rule.name})" for rule in known if rule.layer == layer]
        rows += [f"- [{layer}]({layer}.md): {', '.join(names)}"]
    return "\n".join(rows) + "\n"


def _layer(layer: str, rules: Iterable[Rule]) -> str:
    out = [f"# Rules of the layer {layer}", "", _GENERATED, ""]
    for rule in rules:
        if rule.layer == layer:
            out += _detail(rule)
    return "\n".join(out)


def _detail(rule: Rule) -> list[str]:
    lines = [f"### {rule.name}", "", f"{rule.severity.name.capitalize()}: {in_general(rule.message)}", "", rule.why, ""]
    lines += [f"- try: {remedy}" for remedy in rule.remedies]
    lines += [f"- fires when: `{spec_words(rule.detect)}`, for {rule.persistence}; action {_action(rule)}"]
    if rule.when:
        lines += [f"- only judged when: {', '.join(f'`{text}`' for text in rule.when)}"]
    if rule.unless is not None:
        lines += [f"- not when: `{spec_words(rule.unless)}`"]
    lines += [
        f"- source: {rule.reference}; budget {rule.false_alarm_budget:g} false alarms per 1,000 healthy steps",
        "",
    ]
    return lines


def spec_words(spec: Mapping[str, Any]) -> str:
    """Write a detector on one line: `bound(signal=policy.x, max=1)`."""
    parts = []
    for key, value in spec.items():
        if key == "kind":
            continue
        parts.append(f"{key}={_value(value)}")
    return f"{spec['kind']}({', '.join(parts)})"


def _value(value: Any) -> str:
    if isinstance(value, Mapping) and "kind" in value:
        return spec_words(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _action(rule: Rule) -> str:
    return rule.action.name.lower().replace("_", "-")


def _detectors() -> str:
    out = ["## Detectors", ""]
    for kind in KINDS:
        text = (detector_class(kind).__doc__ or "").strip()
        out += [f"### `{kind}`", "", "\n".join(line.strip() for line in text.splitlines()), ""]
    return "\n".join(out)


def _profiles() -> str:
    out = [
        "## Profiles",
        "",
        "Picked from the trainer's configuration (`rules.profile: auto`), or named; all that match apply.",
        "",
    ]
    for profile in builtin_profiles():
        when = ", ".join(f"{key} {_value(value)}" for key, value in profile.when.items())
        out += [f"- **{profile.name}** ({when}): {profile.help}"]
        out += [f"  - {name} rests: {reason}" for name, reason in profile.disable.items()]
        for name, values in profile.parameters.items():
            out += [f"  - {name}: {', '.join(f'{key} {_value(value)}' for key, value in values.items())}"]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
