"""Metric rows of every log format that we know, one small parser each, tried in the order of `PARSERS`.

A parser sees one line and gives a `Row` or nothing; only NeMo-RL and AReaL need memory, since they spread a step over a
block of lines. Values keep their raw names; None means that the trainer printed None (all values were NaN).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_sentinel.history.logs.lines import Line
from grpo_sentinel.history.logs.names import canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One step as a log shows it; `step` is None where the line does not say."""

    format: str
    source: str
    line: int
    step: int | None
    raw: Mapping[str, float | None]
    total_steps: int | None = None
    rank: int | None = None

    def signals(self) -> dict[str, float]:
        """Translate to catalogue names; None becomes NaN, names without a signal are left out."""
        out: dict[str, float] = {}
        for name, value in self.raw.items():
            signal = canonical(name)
            if signal is not None:
                out.setdefault(signal, math.nan if value is None else value)
        return out


_NUMBER = r"[-+]?(?:\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|NaN|inf|Inf|Infinity)"
_PAIR = re.compile(
    rf"""(['"])([^'"]{{1,120}})\1\s*:\s*(?:np\.\w+\()?(['"]?)({_NUMBER}|None|null)\3\)?\s*(?=[,}}%]|$)"""
)
_NUMBER_ONLY = re.compile(rf"(?:np\.\w+\()?({_NUMBER})\)?")


def number(text: str) -> float | None:
    """Read a printed number; None, null and what is no number give None."""
    if text in ("None", "null"):
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _pairs(text: str) -> dict[str, float | None]:
    """Read the pairs of a printed dictionary: as JSON where a few replacements make it so, else pair by pair."""
    end = text.rfind("}")
    if text.startswith("{") and end > 0 and "(" not in text and "{" not in text[1:]:
        body = text[: end + 1].replace("'", '"').replace(": nan", ": NaN").replace("None", "null")
        if "inf" in body:
            body = body.replace(": inf", ": Infinity").replace(": -inf", ": -Infinity")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            pass
        else:
            return {name: value for name, given in found.items() if (value := _number(given)) is not _NO_NUMBER}
    return {m[2]: number(m[4]) for m in _PAIR.finditer(text)}


_NO_NUMBER = -1e-323  # no trainer prints this subnormal


def _number(given: Any) -> float | None:
    """Read a value of JSON: numbers, also as text, and null; anything else gives `_NO_NUMBER`."""
    if given is None or isinstance(given, float):
        return given
    if isinstance(given, int) and not isinstance(given, bool):
        return float(given) if -_HUGE < given < _HUGE else math.copysign(math.inf, given)
    if isinstance(given, str):
        if given in ("null", "None"):
            return None
        if _NUMBER_TEXT.fullmatch(given):
            return number(given)
    return _NO_NUMBER


_HUGE = 10**300
_NUMBER_TEXT = re.compile(_NUMBER)


_TRAIN_KEYS = (
    "'loss'",
    '"loss"',
    "'reward'",
    '"reward"',
    "'grad_norm'",
    '"grad_norm"',
    "'train_loss'",
    "'kl'",
    "_loss'",
    "/loss'",
    '/loss"',
    "/grad_norm'",
    '/grad_norm"',
    "/reward'",
    '/reward"',
    "/kl'",
    "lm loss'",
    "reward_mean'",
    "_scores'",
)
_SWIFT_STEP = re.compile(r"""['"]global_step/max_steps['"]\s*:\s*['"](\d+)/(\d+)['"]""")
_STEP_KEYS = ("step", "current_steps", "global_step", "train/step", "training/global_step", "trainer/global_step")


def parse_dict(line: Line) -> Row | None:
    """HF, TRL, unsloth, ms-swift, LLaMA-Factory: a Python or JSON dictionary somewhere in the line."""
    text = line.text
    if "':" not in text and '":' not in text:
        return None
    start = text.find("{")
    if start < 0 or "}" not in text[start:] or not any(key in text for key in _TRAIN_KEYS):
        return None
    raw = _pairs(text[start:])
    if len(raw) < 2 or not any(canonical(name) or name.startswith("train_") for name in raw):
        return None
    step: int | None = None
    total: int | None = None
    swift = _SWIFT_STEP.search(text)
    if swift:
        step, total = int(swift[1]), int(swift[2])
    for key in _STEP_KEYS:
        value = raw.get(key)
        if step is None and value is not None and math.isfinite(value):
            step = int(value)
    for key in ("total_steps", "max_steps"):
        value = raw.get(key)
        if total is None and value is not None and math.isfinite(value):
            total = int(value)
    name = "swift" if swift else "json" if text[start : start + 2] == '{"' else "trl"
    return _row(name, line, step, raw, total)


_GLOBAL_STEP = re.compile(r"Global step (\d+)(?: \[\w+\])?\s*:\s*(\{.*)")


def parse_openrlhf(line: Line) -> Row | None:
    """OpenRLHF: `Global step 12: {...}`."""
    if "lobal step " not in line.text:
        return None
    found = _GLOBAL_STEP.search(line.text)
    return _row("openrlhf", line, int(found[1]), _pairs(found[2])) if found and "}" in found[2] else None


_SLIME = re.compile(r"\b(?:step|rollout) (\d+)\s*:\s*(\{.*)")


def parse_slime(line: Line) -> Row | None:
    """slime and miles: `step 1: {'train/loss': ...}`, `rollout 1: {'rollout/raw_reward': ...}`."""
    if "{" not in line.text:
        return None
    found = _SLIME.search(line.text)
    if not found or "}" not in found[2]:
        return None
    raw = _pairs(found[2])
    return _row("slime", line, int(found[1]), raw) if raw else None


_VERL = re.compile(r"(?:^|[\s)])step:(\d+) - (.*)")
_VERL_PAIR = re.compile(rf"([A-Za-z_][\w/.@ \-()]*?):({_NUMBER}|None|np\.\w+\({_NUMBER}\))(?=$|\s|\()")


def parse_verl(line: Line) -> Row | None:
    """verl and its forks: `step:92 - actor/pg_loss:0.1 - ...`, also with np.float64(...) and glued prefixes."""
    if "step:" not in line.text:
        return None
    found = _VERL.search(line.text)
    if not found:
        return None
    raw: dict[str, float | None] = {}
    for part in found[2].split(" - "):
        name, colon, value = part.partition(":")
        if colon:
            try:
                raw[name.strip()] = float(value)
                continue
            except ValueError:
                pass
        pair = _VERL_PAIR.match(part.strip())
        if pair:
            inner = _NUMBER_ONLY.match(pair[2])
            raw[pair[1]] = number(inner[1]) if inner else None
    return _row("verl", line, int(found[1]), raw) if raw else None


_MEGATRON = re.compile(r"iteration:?\s+(\d+)\s*/\s*(\d+)\s*\|(.*)")
_MEGATRON_PAIR = re.compile(rf"^\s*([A-Za-z][\w ()/.]*?)\s*:\s*({_NUMBER})[A-Za-z]?(?: [A-Za-z]\S*)?\s*$")


def parse_megatron(line: Line) -> Row | None:
    """Megatron-LM and nanotron: `iteration 3383/ 8000 | lm loss: ... |`. A missing loss field is kept missing."""
    if "iteration" not in line.text or "|" not in line.text:
        return None
    found = _MEGATRON.search(line.text)
    if not found:
        return None
    raw: dict[str, float | None] = {}
    for part in found[3].split("|"):
        pair = _MEGATRON_PAIR.match(part)
        if pair:
            raw[pair[1]] = number(pair[2])
    return _row("megatron", line, int(found[1]), raw, int(found[2])) if raw else None


_DS_CHAT = re.compile(r"step:\s*(\d+)\|")
_BAR_PAIR = re.compile(rf"([\w/ ]+?):\s*({_NUMBER})\s*(?:\||\]|$)")


def parse_deepspeed_chat(line: Line) -> Row | None:
    """DeepSpeed-Chat `epoch: 0|step: 3183|act_loss: 30.9` and trlX `[losses/total_loss: 1.64 | ...]`."""
    text = line.text
    if "act_loss:" in text and "|" in text:
        found = _DS_CHAT.search(text)
        raw = {m[1].strip(): number(m[2]) for m in _BAR_PAIR.finditer(text)}
        raw.pop("step", None)
        return _row("deepspeed-chat", line, int(found[1]) if found else None, raw) if raw else None
    if "losses/total_loss:" in text:
        raw = {m[1].strip(): number(m[2]) for m in _BAR_PAIR.finditer(text[text.find("losses/") :])}
        return _row("trlx", line, None, raw) if raw else None
    if text.startswith("average reward score:"):
        return _row("deepspeed-chat", line, None, {"average reward score": number(text.partition(":")[2].strip())})
    return None


_ADVANTAGES = re.compile(rf"dvantages stats: min=({_NUMBER}), max=({_NUMBER}), mean=({_NUMBER}), std=({_NUMBER})")


def parse_advantages(line: Line) -> Row | None:
    """NeMo-RL: `Normalized advantages stats: min=-1.4, max=1.8, mean=0.0, std=0.9`."""
    found = _ADVANTAGES.search(line.text)
    if not found:
        return None
    names = ("min", "max", "mean", "std")
    return _row("nemo", line, None, {f"advantages/{name}": number(found[i]) for i, name in enumerate(names, 1)})


_PLAIN_STEP = re.compile(r"(?:^|\b)(?:step|iter(?:ation)?|epoch)\s*[:=]?\s*\[?(\d+)(?:\s*/\s*(\d+))?\]?", re.IGNORECASE)
_PLAIN_GATE = re.compile(r"(?:[lL]oss|grad_norm|reward|\| Reward)[\w/.]*\s*[=: ]\s*[-+.\dnNiI]")
_PLAIN_PAIR = re.compile(rf"\b([A-Za-z][\w/.]*)\s*[=:]\s*({_NUMBER})(?:s\b)?(?:\s*\(({_NUMBER})\))?(?![\w.])")
_WORD_PAIR = re.compile(
    r"\b((?:policy_|pg_|train_|lm )?loss|grad[_ ]?norm|reward|reward_std|kl|lr|learning_rate|entropy)"
    rf"\s+({_NUMBER})(?!\w|\.|\s*->)"
)


def parse_plain(line: Line) -> Row | None:
    """A plain loop: `step 10/611  loss=12.1181  lr=1.97e-04`, AMP's `grad_norm: 0.3922 (nan)` (value, mean), and
    `iter 10 | loss 0.52 | grad_norm 0.3`; prime-rl's `Step 28 | Reward: 0.3887 | Seq. Length: 345.6 tokens/sample`.
    """
    text = line.text
    if _PLAIN_GATE.search(text) is None:
        return None
    raw = {m[1]: number(m[2]) for m in _PLAIN_PAIR.finditer(text) if m[1].lower() not in ("step", "epoch", "iter")}
    if text.count("|") >= 3:  # `Step 3 | Loss: 0.01 | Grad. Norm: 0.12 | LR: 1e-6`
        cells = (_MEGATRON_PAIR.match(cell) for cell in text.split("|"))
        raw |= {cell[1]: number(cell[2]) for cell in cells if cell is not None}
    raw = {name: value for name, value in raw.items() if canonical(name) or "loss" in name or "Mem" in name}
    step = _PLAIN_STEP.search(text)
    if not raw:
        for found in _WORD_PAIR.finditer(text):
            raw.setdefault(found[1].replace("gradnorm", "grad_norm"), number(found[2]))
        if len(raw) < (1 if step else 3):  # prose rarely holds three pairs
            return None
    if not raw or (step is None and len(raw) < 2):
        return None
    return _row("plain", line, int(step[1]) if step else None, raw, int(step[2]) if step and step[2] else None)


_CELLS = re.compile(r"\s*\|\s*|\t+")
_NAMES = {"training loss": "loss", "loss": "loss", "validation loss": "eval_loss"}


def table_head(text: str) -> tuple[str, ...] | None:
    """Names of the columns of a notebook's table: `Step | Training Loss | reward | ...`; None for any other line."""
    cells = _cells(text)
    if len(cells) < 2 or cells[0] != "Step" or not any(cell.lower() in _NAMES for cell in cells[1:]):
        return None
    return tuple(_NAMES.get(cell.lower(), cell.replace(" / ", "/")) for cell in cells[1:])


def table_row(line: Line, names: tuple[str, ...]) -> Row | None:
    """One row of numbers below such a head."""
    cells = _cells(line.text)
    if len(cells) < 2 or not cells[0].isdigit() or len(cells) > len(names) + 1 or len(cells[0]) > 9:
        return None
    raw = {name: number(cell) for name, cell in zip(names, cells[1:], strict=False) if _NUMBER_TEXT.fullmatch(cell)}
    return _row("table", line, int(cells[0]), raw) if raw else None


def _cells(text: str) -> list[str]:
    return [cell.strip() for cell in _CELLS.split(text.strip().strip("|").strip())]


PARSERS: tuple[tuple[str, Callable[[Line], Row | None]], ...] = (
    ("lobal step ", parse_openrlhf),
    ("step ", parse_slime),
    ("rollout ", parse_slime),
    ("step:", parse_verl),
    ("iteration", parse_megatron),
    ("act_loss:", parse_deepspeed_chat),
    ("losses/total_loss:", parse_deepspeed_chat),
    ("average reward score:", parse_deepspeed_chat),
    ("dvantages stats:", parse_advantages),
    ("{", parse_dict),
    ("oss", parse_plain),
    ("grad_norm", parse_plain),
    ("reward", parse_plain),
    ("| Reward: ", parse_plain),
)
"""What a line must hold for a parser to be asked; most specific first, the first that gives a row wins."""


def _row(name: str, line: Line, step: int | None, raw: dict[str, float | None], total: int | None = None) -> Row:
    found = _RANK.search(line.text) if "[rank" in line.text else None
    named = raw.get("rank")
    rank = int(found[1]) if found else int(named) if named is not None and 0 <= named < 1e6 else None
    return Row(
        format=name,
        source=line.source,
        line=line.number,
        step=step,
        raw=raw,
        total_steps=total,
        rank=rank,
    )


_RANK = re.compile(r"\[rank(\d+)\]")
_NEMO_STEP = re.compile(r"=+ Step (\d+)/(\d+) =+")
_NEMO_PAIR = re.compile(rf"•\s*([^:]+):\s*({_NUMBER})")
_AREAL_STEP = re.compile(r"\bTrain step (\d+)/(\d+) done")
_AREAL_PAIR = re.compile(rf"│ ([\w/.]+)\s+│\s+({_NUMBER})\s*(?=│)")
_BAR = re.compile(r"^\s*\d+%\|.*?\| (\d+)/(\d+) \[[\d:]+<")  # a bar with a caption counts something else


_MAX_DICT = 20_000  # characters of one printed dictionary


@dataclass(slots=True)
class RowReader:
    """Turn lines into rows: parsers in order, progress bars for steps, blocks of NeMo-RL and AReaL joined.

    A dictionary row without a step takes it from the nearest progress bar before it in the same source when there
    is one; otherwise `step` stays None.
    """

    bars: dict[str, tuple[int, int]] = field(default_factory=dict)
    _block: dict[str, Row] = field(default_factory=dict)
    _begun: dict[str, Line] = field(default_factory=dict)  # dictionaries that go on in the next line
    _heads: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def feed(self, line: Line) -> Iterator[Row]:
        """Give the rows that this line completes (mostly none or one)."""
        if self._begun and line.source in self._begun:
            line = self._joined(self._begun.pop(line.source), line)
        text = line.text
        if text.startswith("{") and "}" not in text and ("':" in text or '":' in text) and len(text) < _MAX_DICT:
            self._begun[line.source] = line  # printed over several lines, or torn: then it is dropped
            return
        nemo = _NEMO_STEP.search(text) if "= Step " in text else None
        if nemo:
            yield from self.flush(line.source)
            self._block[line.source] = _row("nemo", line, int(nemo[1]), {}, int(nemo[2]))
            return
        areal = _AREAL_STEP.search(text) if "Train step " in text else None
        if areal:
            yield from self.flush(line.source)
            self._block[line.source] = _row("areal", line, int(areal[1]), {}, int(areal[2]))
            return
        block = self._block.get(line.source)
        if block is not None and ("•" in text or "│" in text):
            pairs = (_NEMO_PAIR if "•" in text else _AREAL_PAIR).findall(text)
            if pairs:
                raw = {**block.raw, **{name.strip(): number(value) for name, value in pairs}}
                self._block[line.source] = _row(block.format, line, block.step, raw, block.total_steps)
            return
        if "Step" in text and "oss" in text:
            head = table_head(text)
            if head is not None:
                self._heads[line.source] = head
                return
        elif self._heads and line.source in self._heads and ("|" in text or "\t" in text):
            cell_row = table_row(line, self._heads[line.source])
            if cell_row is not None:
                yield cell_row
                return
        if "it]" in text or "s/it" in text or "it/s" in text:
            bar = _BAR.search(text)
            if bar:
                self.bars[line.source] = (int(bar[1]), int(bar[2]))
        for needle, parse in PARSERS:
            if needle in text:
                row = parse(line)
                if row is not None:
                    yield self._with_bar(row)
                    return

    @staticmethod
    def _joined(begun: Line, line: Line) -> Line:
        """Put the next line of a printed dictionary behind what there is of it; any other line ends it."""
        if line.text[:1] not in (" ", "'", '"', "}"):
            return line
        return Line(begun.source, begun.number, f"{begun.text} {line.text.strip()}")

    def flush(self, source: str | None = None) -> Iterator[Row]:
        """Give what is still being joined, at the end of the log."""
        for name in [source] if source is not None else list(self._block):
            block = self._block.pop(name, None)
            if block is not None and block.raw:
                yield block

    def _with_bar(self, row: Row) -> Row:
        if row.step is not None or row.source not in self.bars or row.format not in ("trl", "json"):
            return row
        step, total = self.bars[row.source]
        return Row(
            format=row.format,
            source=row.source,
            line=row.line,
            step=step,
            raw=row.raw,
            total_steps=row.total_steps or total,
            rank=row.rank,
        )


def read_rows(lines: Iterable[Line]) -> Iterator[Row]:
    """Give every metric row of some lines, in their order."""
    reader = RowReader()
    for line in lines:
        yield from reader.feed(line)
    yield from reader.flush()
