"""Healthy runs: real ones in several configurations, and synthetic series through the same engine."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faultbench.fault import EVER, LOOP1, LOOP2, TRL1, TRL2, Mechanism
from benchmarks.faultbench.runs import Job

SOURCES = ("gaussian", "student", "drifting", "seasonal")
_GENTLE = {"learning_rate": 2e-5, "save_every": 100}
_SLOW = {"learning_rate": 5e-6, "save_every": 100}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "beta_zero": (LOOP1, {**_GENTLE, "beta": 0.0}),
    "beta_0.04": (LOOP1, {**_GENTLE, "beta": 0.04}),
    "three_iterations": (LOOP1, {**_GENTLE, "iterations": 3}),
    "lora": (LOOP1, {**_GENTLE, "lora": True, "learning_rate": 1e-4}),
    "long_warmup_and_decay": (LOOP1, {**_GENTLE, "warmup": 200, "decay_to_zero": True}),
    "dr_grpo_unscaled": (LOOP1, {**_GENTLE, "scale_rewards": "none"}),
    "two_ranks": (LOOP2, {**_GENTLE}),
    "learns_fast": (LOOP1, {**_GENTLE, "learning_rate": 3e-4, "warmup": 20}),
    "trl": (TRL1, {**_SLOW}),
    "trl_beta": (TRL1, {**_SLOW, "beta": 0.04}),
    "trl_two_iterations": (TRL1, {**_SLOW, "iterations": 2}),
    "trl_lora": (TRL1, {**_SLOW, "learning_rate": 5e-5, "lora": True}),
    "trl_long_warmup_and_decay": (TRL1, {**_SLOW, "warmup": 300, "grpo": {"lr_scheduler_type": "cosine"}}),
    "trl_mixed_lengths": (TRL1, {**_SLOW, "mixed_lengths": True, "max_completion_length": 20}),
    "trl_learns": (TRL1, {**_SLOW, "learning_rate": 2e-5, "beta": 0.02}),
    "trl_accumulates": (TRL1, {**_SLOW, "grpo": {"gradient_accumulation_steps": 2}}),
    "trl_dapo": (
        TRL1,
        {
            **_SLOW,
            "iterations": 2,
            "grpo": {"loss_type": "dapo", "epsilon_high": 0.28, "mask_truncated_completions": True},
        },
    ),
    "trl_dr_grpo": (TRL1, {**_SLOW, "grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"}}),
    "trl_gspo": (
        TRL1,
        {
            **_SLOW,
            "iterations": 2,
            "grpo": {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        },
    ),
    "trl_cispo": (TRL1, {**_SLOW, "iterations": 2, "grpo": {"loss_type": "cispo", "epsilon_high": 5.0}}),
    "trl_two_ranks": (TRL2, {**_SLOW}),
}


def jobs(trainers: Sequence[str], steps: int, only: str = "") -> Iterator[Job]:
    """Give the real healthy runs of `steps` optimizer steps each."""
    wanted = [name for name in only.split(",") if name]
    for name, (kind, config) in CONFIGURATIONS.items():
        if kind in trainers and (not wanted or name in wanted):
            row = Mechanism(
                name=f"healthy-{name}",
                layer="",
                what="healthy",
                inject=lambda fault: None,
                roots=(),
                trainers=(kind,),
                start=EVER,
                steps=steps,
                config={**config, "steps": steps},
                timeout=steps * 2.0 + 120,
            )
            yield Job(mechanism=row, trainer=kind, seed=7)


def synthetic(out: Path, steps: int, rules: str) -> None:
    """Play synthetic healthy series through all rules, one rank, and store the findings by severity."""
    from benchmarks import healthy as series
    from grpo_sentinel.records import FindingState
    from grpo_sentinel.rules import Engine, load_rules

    for source in SOURCES:
        place = out / "results" / f"synthetic-{source}.json"
        if place.is_file() and json.loads(place.read_text())["steps"] >= steps:
            continue
        engine = Engine(load_rules(), run_id=source)
        found: Counter[str] = Counter()
        told: list[str] = []
        started = time.process_time()
        for frame in series.run(source, steps):
            for finding in engine.frame(frame):
                if finding.state is FindingState.FIRING and finding.finding_id not in told:
                    told.append(finding.finding_id)
                    found[f"{finding.severity.name.lower()} {finding.rule}"] += 1
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(
            json.dumps(
                {
                    "source": source,
                    "steps": steps,
                    "rules": rules,
                    "found": dict(found),
                    "cpu_seconds": round(time.process_time() - started, 1),
                },
                indent=1,
            )
        )
