"""A rank for tests: reads commands from stdin, answers each with `done`.

step N [value] | data N bad [micro-batch] | eval N | memory N | generation N | steps FIRST LAST | event N | phase N | close
"""

from __future__ import annotations

import sys
from pathlib import Path

from grpo_sentinel.protocol import Geometry, RankWriter, new_identity
from grpo_sentinel.records import Kind, Mode, Phase


def main() -> None:
    directory, rank, slots = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    writer = RankWriter(directory, new_identity(rank, rank, 8, "run"), Geometry(slots=slots))
    print("ready", flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        obey(writer, rank, command, words)
        print("done", flush=True)


def obey(writer: RankWriter, rank: int, command: str, words: list[str]) -> None:
    step = int(words[0]) if words else 0
    if command == "step":
        writer.push({"gradient.norm_preclip": float(words[1]) if words[1:] else float(rank)}, step=step)
    elif command == "steps":
        for number in range(step, int(words[1]) + 1):
            writer.push({"gradient.norm_preclip": float(number)}, step=number)
    elif command == "data":
        micro_batch = int(words[2]) if words[2:] else 0
        writer.push({"data.out_of_vocabulary": float(words[1])}, step=step, kind=Kind.DATA, micro_batch=micro_batch)
    elif command == "eval":
        writer.push({"reward.mean": 1.0}, step=step, mode=Mode.EVALUATION)
    elif command == "memory":
        writer.push({"memory.rss_bytes": 5e9}, step=step, kind=Kind.MEMORY)
    elif command == "generation":
        writer.push({"reward.mean": 0.25}, step=step, kind=Kind.GENERATION)
    elif command == "event":
        writer.event("note", {"n": step}, step=step)
    elif command == "phase":
        writer.phase(Phase.FORWARD, step)
    elif command == "close":
        writer.close("finished")


main()
