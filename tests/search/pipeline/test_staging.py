from types import SimpleNamespace

import pytest

from search.errors import InputError
from search.pipeline.staging import _rescue, _with_changes
from search.sweep.sweep import Sweep

PARAMS = {"batch_size": 4, "optimizer": "sgd", "precision": "bf16-true"}


def loaded(space, *, rescue=True):
    return SimpleNamespace(
        sweep=Sweep.model_validate(
            {
                "name": "one",
                "objective": "toys:Toy",
                "space": space,
                "memory": {"rescue": rescue},
                "trial": {"tokens": 1000},
                "objectives": {"error": "min"},
                "trials": 3,
            }
        )
    )


@pytest.mark.parametrize(
    ("space", "free"),
    [
        ({"batch_size": [8]}, ("micro_batch_size", "activation_checkpointing")),
        ({"micro_batch_size": [8]}, ("activation_checkpointing",)),
        ({"activation_checkpointing": [True, False]}, ("micro_batch_size",)),
    ],
)
def test_what_is_searched_is_not_changed(space, free):
    assert _rescue(loaded(space)) == free
    assert _rescue(loaded(space, rescue=False)) == ()


def test_a_rescue_that_may_change_nothing_is_refused():
    both = {"micro_batch_size": [8], "activation_checkpointing": [True, False]}
    with pytest.raises(InputError, match=r"memory\.rescue: .* are both searched"):
        _rescue(loaded(both))
    assert _rescue(loaded(both, rescue=False)) == ()


def test_changes_are_announced_with_what_they_are_made_to():
    accumulated = [{**PARAMS, "micro_batch_size": size} for size in (2, 1)]
    checkpointed = {**PARAMS, "activation_checkpointing": True}
    assert list(_with_changes([PARAMS], ())) == [PARAMS, *accumulated, checkpointed]
    rescued = list(_with_changes([PARAMS], ("micro_batch_size", "activation_checkpointing")))
    assert rescued[4:] == [
        *accumulated,
        *({**checkpointed, "micro_batch_size": size} for size in ("equal", 2, 1)),
    ]
