"""Several processes train as one does: the same samples, the same losses, the same weights."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from search.errors import InputError
from search.memory.sample import Sample
from search.parallel import next_share
from search.training import TrainingRun
from search.training_params import TrainingParams, micro_batch_size

_TWIN = """
from objectives.language_model import LanguageModel
from search.training import TrainingRun
objective = LanguageModel(held_out_tokens=8_192)
found = []
for chosen in {params}:
    run = TrainingRun(objective, chosen, num_tokens={num_tokens}, device=torch.device("cpu"))
    losses = []
    while not run.done:
        losses.append(run.step().loss.item())
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in run.model.parameters()]
    found.append([losses, sum(p.double().abs().sum().item() for p in weights), run.evaluate()])
print(json.dumps(found))
"""
_MODEL = {"width": 32, "depth": 2, "heads": 2, "sequence_length": 32, "batch_size": 8}
_NUM_TOKENS = 8 * 32 * 6 + 3 * 32 + 5
"""Six whole steps, and one of three samples and a short one."""
_TOGETHER = {
    "data parallel": {},
    "gradients apart from the buckets": {"gradient_as_bucket_view": False},
    "accumulated": {"micro_batch_size": 2},
    "zeroed in place": {"micro_batch_size": 2, "zero_grad_to_none": False},
    "one sample at a time": {"micro_batch_size": 1},
    "sharded": {"sharding": "full"},
    "sharded, accumulated, checkpointed": {
        "sharding": "full",
        "micro_batch_size": 2,
        "activation_checkpointing": True,
    },
    "sharded, fused": {"sharding": "full", "optimizer_implementation": "fused"},
}


@pytest.fixture(scope="module")
def alone(joined):
    """What one process finds, with no other beside it."""
    found = joined(_TWIN.format(params=[_MODEL], num_tokens=_NUM_TOKENS), world_size=1)
    return found[0][0]


@pytest.fixture(scope="module")
def together(joined):
    """What each of two processes finds, by the way they work together."""
    params = [{**_MODEL, "world_size": 2, **chosen} for chosen in _TOGETHER.values()]
    found = joined(_TWIN.format(params=params, num_tokens=_NUM_TOKENS))
    return {name: [rank[index] for rank in found] for index, name in enumerate(_TOGETHER)}


@pytest.mark.parametrize("name", list(_TOGETHER))
def test_two_ranks_take_the_steps_of_one_process(alone, together, name):
    losses, weights, metrics = alone
    assert len(losses) == 7
    for rank_losses, rank_weights, _ in together[name]:
        assert rank_losses == pytest.approx(losses, rel=1e-5)
        assert rank_weights == pytest.approx(weights, rel=1e-5)
    assert together[name][0][2] == pytest.approx(metrics, rel=1e-5)


def test_replicas_leave_the_evaluation_to_the_first_rank(together):
    assert together["data parallel"][1][2] == {}
    assert together["sharded"][1][2] == together["sharded"][0][2]


class _Rank:
    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=20),
    world_size=st.integers(1, 4),
)
def test_the_ranks_share_every_batch_and_none_is_left_out(sizes, world_size):
    batches = [{"values": torch.full((size,), index)} for index, size in enumerate(sizes)]
    shares = []
    for rank in range(world_size):
        stream, own = iter(batches), []
        while (share := next_share(stream, _Rank(rank, world_size), _num_tokens)) is not None:
            own.append(share)
        shares.append(own)
    assert len(set(map(len, shares))) == 1  # all take part in as many exchanges
    counted = [
        share.batch["values"][0].item()
        for together in zip(*shares, strict=True)
        for share in together
        if share.num_tokens
    ]
    assert counted == list(range(len(batches)))
    for together in zip(*shares, strict=True):
        assert sum(share.num_tokens for share in together) == together[0].round_tokens
        assert len({share[2:] for share in together}) == 1
    assert sum(share.round_samples for share in shares[0]) == sum(sizes)


def _num_tokens(batch):
    return 10 * len(batch["values"])


@pytest.mark.parametrize(
    ("params", "refusal"),
    [
        ({"batch_size": 6, "world_size": 4}, "world_size 4 does not divide batch_size 6"),
        ({"world_size": 0}, "world_size must be above 0"),
        ({"sharding": "full"}, "sharding full needs a world_size above 1"),
        (
            {"batch_size": 8, "world_size": 2, "micro_batch_size": 8},
            "micro_batch_size 8 does not divide batch_size 8 over world_size 2",
        ),
        (
            {"world_size": 2, "step_in_backward": True, "clip_norm": 0.0},
            "step_in_backward updates before the ranks have added up their gradients",
        ),
        (
            {"world_size": 2, "sharding": "full", "optimizer": "adafactor"},
            "sharding full does not go with optimizer adafactor",
        ),
    ],
)
def test_what_ranks_cannot_do_together_is_refused_by_name(params, refusal):
    with pytest.raises(ValueError, match=refusal):
        TrainingParams.of(params)


def test_a_batch_is_divided_over_the_ranks():
    assert micro_batch_size({"batch_size": 32, "world_size": 4}) == 8


def test_a_run_of_several_is_not_begun_alone():
    with pytest.raises(InputError, match="2 processes must be joined, found 1"):
        TrainingRun(Sample(), {"world_size": 2}, num_tokens=1, device=torch.device("cpu"))
