"""build/bench.json: figures of one name replace each other, those of other benchmarks stay."""

from __future__ import annotations

import json

from benchmarks.__main__ import main
from benchmarks.record import record


def test_figures_are_merged_by_name_with_the_ratio_to_the_peer(tmp_path):
    path = tmp_path / "build" / "bench.json"
    record("push", 5.0, "µs", peer="wandb", peer_value=400.0, path=path)
    record("rss", 80.0, "MiB", path=path)
    record("push", 4.0, "µs", peer="wandb", peer_value=400.0, path=path)
    assert json.loads(path.read_text()) == {
        "push": {"value": 4.0, "unit": "µs", "peer": "wandb", "peer_value": 400.0, "ratio": 100.0},
        "rss": {"value": 80.0, "unit": "MiB", "peer": "", "peer_value": None, "ratio": None},
    }


def test_an_unknown_benchmark_is_refused_with_the_names_there_are(capsys):
    assert main(["pusch"]) == 2
    assert "push" in capsys.readouterr().err
