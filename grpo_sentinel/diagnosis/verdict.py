"""What a diagnosis says: one verdict with its evidence, or an honest `undetermined` with what would decide it."""

from __future__ import annotations

from dataclasses import dataclass, field

LAYERS = (
    "data",
    "reward",
    "policy",
    "gradient",
    "optimizer",
    "memory",
    "device",
    "communication",
    "tooling",
    "none",
    "undetermined",
)
SCHEMA = "grpo-sentinel.diagnosis/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One place in a log that supports a candidate."""

    source: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One possible cause. `confidence` is 0 to 1; `order` sorts what came first: row index or line number share."""

    name: str
    layer: str
    confidence: float
    says: str
    role: str = "cause"  # cause | symptom | witness
    step: int | None = None
    rank: int | None = None
    at: float = 0.0  # position in the log, 0 to 1: earlier wins among equals
    evidence: tuple[Evidence, ...] = ()
    tries: tuple[str, ...] = ()
    would_decide: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The verdict and everything beside it."""

    verdict: Candidate
    chain: tuple[Candidate, ...] = ()  # what followed from it
    notes: tuple[str, ...] = ()  # looks wrong and is normal
    rows: int = 0
    lines: int = 0
    formats: tuple[str, ...] = ()
    sources: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, object]:
        """Give the documented, versioned shape of `--json`."""
        verdict = self.verdict
        return {
            "schema": SCHEMA,
            "verdict": {
                "layer": verdict.layer,
                "cause": verdict.name,
                "confidence": round(verdict.confidence, 2),
                "step": verdict.step,
                "rank": verdict.rank,
                "says": verdict.says,
            },
            "evidence": [{"source": e.source, "line": e.line, "text": e.text} for e in verdict.evidence],
            "try": list(verdict.tries),
            "would_decide": list(verdict.would_decide),
            "chain": [
                {"layer": c.layer, "cause": c.name, "says": c.says, "step": c.step, "rank": c.rank} for c in self.chain
            ],
            "notes": list(self.notes),
            "read": {
                "rows": self.rows,
                "lines": self.lines,
                "formats": list(self.formats),
                "sources": list(self.sources),
            },
        }
