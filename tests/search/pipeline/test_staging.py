from types import SimpleNamespace

import pytest

from search.errors import InputError
from search.memory.device import ByteEstimate, Device, WorkspaceBytes
from search.memory.machine import GpuMemory
from search.pipeline.staging import _rescue, _with_changes, machine_of
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
    every_second = {**PARAMS, "activation_checkpointing": "every-2"}
    checkpointed = {**PARAMS, "activation_checkpointing": True}
    mended = [PARAMS, *accumulated, every_second, checkpointed]
    assert list(_with_changes([PARAMS], ())) == mended
    rescued = list(_with_changes([PARAMS], ("micro_batch_size", "activation_checkpointing")))
    assert rescued[len(mended) :] == [
        *accumulated,
        *({**checkpointed, "micro_batch_size": size} for size in ("equal", 2, 1)),
    ]


def test_what_was_measured_on_a_gpu_decides_its_memory():
    context = ByteEstimate(low_bytes=1, expected_bytes=2, high_bytes=3, source="none")
    found = WorkspaceBytes(cublas_bytes=4, lt_bytes=5, backward_bytes=6)
    facts = {"name": "a GPU", "kind": "cuda", "capacity_bytes": 7, "architecture": (8, 0)}
    machines = [
        machine_of(Device(**facts, context=context, workspaces=each)) for each in (found, None)
    ]
    plain = GpuMemory(architecture=(8, 0), context=context)
    assert machines == [GpuMemory(architecture=(8, 0), context=context, workspaces=found), plain]
    assert repr(machines[0]) != repr(plain)  # predictions are kept by it
    assert machines[0].target().workspaces is found
