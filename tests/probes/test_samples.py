"""A finding names the samples: rows, the data set's own id or a digest, never the text."""

from __future__ import annotations

import json
import math

import pytest

torch = pytest.importorskip("torch")

from grpo_sentinel.agent.probes import reward  # noqa: E402
from grpo_sentinel.agent.probes.groups import digest, shared_over_ranks  # noqa: E402
from grpo_sentinel.agent.probes.model_state import describe_model, observe_model  # noqa: E402
from grpo_sentinel.agent.probes.samples import blamed, dataset_id  # noqa: E402

from .helpers import harvest  # noqa: E402

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


def test_samples_that_stand_on_another_rank_as_well_are_counted_as_a_share():
    ranks = [("a", "1"), ("a", "2"), ("b", "1"), ("c", "1"), ("c", "1"), ("a", "2")]
    shares = [shared_over_ranks(ranks, rows=2, rank=rank)["data.duplicate_over_ranks_ratio"] for rank in range(3)]
    assert shares == [0.5, 0.5, 1.0], "a prompt alone is no sample; a duplicate within one rank is another signal's"


def test_learnability_is_largest_where_half_of_a_group_is_right_and_absent_for_graded_scores():
    def index(*scores, size):
        return harvest(reward.observe(torch.tensor(scores), ["f"], group_size=size)).values.get("reward.learnability_index")

    half = index(*[0.0] * 4, *[1.0] * 4, size=8)
    exact = sum(math.comb(8, m) * 0.5**8 * math.sqrt(m / 8 * (1 - m / 8)) for m in range(9))
    assert half == pytest.approx(exact)
    assert half == pytest.approx(0.46, abs=0.01)
    assert index(*[-1.0] * 4, *[3.0] * 4, size=4) == 0, "each group is all wrong or all right"
    assert index(0.0, 0.5, 1.0, 1.0, size=4) is None


def test_a_frozen_models_dtypes_devices_and_adapters_are_read():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1).half())
    values = observe_model("rm", model)
    assert (values["reward.model_dtypes[rm]"], values["reward.model_bits[rm]"], values["reward.model_devices[rm]"]) == (2, 16, 1)
    assert "reward.model_adapter_mismatch[rm]" not in values
    assert describe_model(model) == {"dtype": "float16, float32", "device": "cpu"}
