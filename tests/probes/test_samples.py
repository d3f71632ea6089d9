"""A finding names the samples: rows, the data set's own id or a digest, never the text."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from grpo_sentinel.agent.probes.groups import digest  # noqa: E402
from grpo_sentinel.agent.probes.samples import blamed, dataset_id  # noqa: E402

pytestmark = pytest.mark.torch


def test_rows_that_an_earlier_micro_batch_told_of_are_not_told_again():
    ids = torch.tensor([[5, 6], [7, 9], [8, 8]])
    (body,) = blamed({"data.out_of_vocabulary": (1, 5)}, 4, ids)
    assert (body["signal"], body["rows"]) == ("data.out_of_vocabulary", [1])
    assert body["samples"] == [{"row": 1, "prompt_digest": digest([7, 9])}]
    assert list(blamed({"data.out_of_vocabulary": (1,)}, 4, ids)) == []


def test_the_data_sets_own_id_is_used_and_the_prompt_is_not_shown():
    inputs = [{"prompt": "secret", "id": 17}, {"prompt": "other"}]
    (body,) = blamed({"reward.nonfinite": (0, 1)}, 0, None, lambda row: dataset_id(inputs[row]))
    assert body["text"] == "row 0 (id 17); row 1"
    assert "secret" not in json.dumps(body)


def test_many_rows_fit_into_one_event():
    (body,) = blamed({"data.empty_rows": tuple(range(16))}, 0, torch.zeros(16, 4096, dtype=torch.long))
    assert len(body["samples"]) == 4
    assert len(json.dumps(body)) < 1500
