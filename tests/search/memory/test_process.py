import pytest
import torch

from search.memory import process
from search.memory.device import device_here
from search.memory.process import release_memory

needs_bf16_kernels = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="this processor has no bf16 kernels that are compiled",
)


def test_only_a_prepared_process_can_tell_what_it_holds(monkeypatch):
    monkeypatch.setattr(process._State, "baseline_bytes", None)
    with pytest.raises(RuntimeError, match="prepare_process"):
        release_memory(device_here())


@needs_bf16_kernels
def test_new_kernels_take_the_place_of_old_ones(fresh):
    grown_bytes = fresh("""
        from search.memory.process import process_bytes
        before = process_bytes("RssAnon")
        for length in range(500, 560):
            matrix = torch.zeros(length, 48, dtype=torch.bfloat16)
            torch.mm(matrix, matrix.t())
        print(process_bytes("RssAnon") - before)
    """)
    # 60 kernels of 0.55 MiB each would be 33 MiB.
    assert grown_bytes < 6 * 2**20


def test_memory_is_released_after_each_trial_and_after_running_out(fresh):
    held = fresh("""
        import traceback
        from search.memory.sample import Sample
        from search.training import TrainingRun

        def train(**params):
            run = TrainingRun(Sample(), params, num_tokens=10**6, device=device.torch_device)
            run.step()
            run.step()
            run.evaluate()

        def trial(budget_bytes, **params):
            try:
                with enforce_budget(device, budget_bytes):
                    train(**params)
            except RuntimeError as error:
                traceback.clear_frames(error.__traceback__)
                return "out of memory" if is_out_of_memory(error) else str(error)
            return "completed"

        large = {"width": 256, "sequence_length": 128, "batch_size": 16}
        found = []
        for budget_bytes in (2**40, 40 * 2**20, 2**40, 20 * 2**20, 2**40):
            outcome = trial(budget_bytes, **large)
            found.append([outcome, release_memory(device)])
        print(json.dumps(found))
    """)
    assert [outcome for outcome, _ in held] == [
        "completed", "out of memory", "completed", "out of memory", "completed",
    ]  # fmt: skip
    assert max(num_bytes for _, num_bytes in held) < 8 * 2**20


def test_resident_memory_follows_the_tensors(fresh):
    all_of_them, every_other, held_bytes = fresh("""
        from search.memory.process import process_bytes
        before = process_bytes("RssAnon")
        tensors = [torch.ones(size) for size in range(40_000, 400_000, 4_000)]
        resident = process_bytes("RssAnon") - before
        needed = sum(tensor.nbytes for tensor in tensors)
        del tensors[::2]
        left = sum(tensor.nbytes for tensor in tensors)
        shares = [resident / needed, (process_bytes("RssAnon") - before) / left]
        print(json.dumps([*shares, release_memory(device) / left]))
    """)
    assert [all_of_them, every_other] == pytest.approx([1, 1], rel=0.05)
    assert held_bytes == pytest.approx(1, rel=0.1)  # what is kept is seen


@needs_bf16_kernels
def test_a_process_whose_kernels_were_refused_memory_is_of_no_more_use(fresh):
    found = fresh("""
        import contextlib
        from search.memory.process import process_bytes
        refused = None
        try:
            with enforce_budget(device, 600 * 1024):
                for length in range(3, 303):
                    matrix = torch.zeros(length, 16, dtype=torch.bfloat16)
                    torch.mm(matrix, matrix.t())
        except RuntimeError as error:
            refused = str(error)
            is_memory = is_out_of_memory(error)
        print(json.dumps([refused, is_memory, release_memory(device) > LEAK_TOLERANCE_BYTES]))
    """)
    assert found == ["could not create a primitive", True, True]
