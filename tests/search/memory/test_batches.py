"""Data whose batches are not all of one size: a longest one among shorter, and a smaller last."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from objectives.language_model import LanguageModel
from search.memory.allocator import CachingAllocator
from search.memory.allocator_settings import AllocatorSettings
from search.memory.batches import LastBatches, last_batches
from search.memory.cuda import Cuda
from search.memory.device import ByteEstimate
from search.memory.machine import GpuMemory, reserved
from search.memory.prediction import Predictor, predict
from search.memory.sample import Sample
from search.memory.trace import Part, Phase, trace
from search.objective import Split
from search.training_params import micro_batch_size

MIB = 2**20
A100 = (8, 0)
CONTEXT = ByteEstimate(low_bytes=0, expected_bytes=0, high_bytes=0, source="none")
SETTINGS = AllocatorSettings()


class Rows(Sample):
    """A net of `depth` layers of 1024 neurons on rows of 1024 numbers."""

    def model(self, params) -> nn.Module:
        layers = [nn.Linear(1024, 1024, bias=False) for _ in range(params["depth"])]
        return nn.Sequential(*(step for layer in layers for step in (layer, nn.Sigmoid())))

    def batch(self, params, split) -> Mapping[str, Tensor]:  # noqa: ARG002 - as the contract has it
        return {"inputs": torch.zeros(micro_batch_size(params), 1024)}

    def data(self, params, split, *, seed, num_tokens=None):  # noqa: ARG002 - the same
        """Ten held-out rows; one token a row."""
        left, size = num_tokens or 10, micro_batch_size(params)
        while left:
            yield {"inputs": torch.zeros(min(size, left), 1024)}
            left -= min(size, left)

    def num_tokens(self, batch) -> int:
        return len(batch["inputs"])

    def tokens_per_sample(self, params) -> int:  # noqa: ARG002 - the same
        return 1

    def loss(self, model, batch) -> Tensor:
        return model(batch["inputs"]).square().mean()


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedParams:
    longest: int = 64
    width: int = 16


class PaddedSample(Sample):
    """The sample on sequences of which most are a quarter of the longest."""

    def __init__(self, share: int = 4) -> None:
        super().__init__()
        self.parameters = PaddedParams
        self.share = share

    def batch(self, params, split) -> Mapping[str, Tensor]:
        return super().batch({**params, "sequence_length": params["longest"]}, split)

    def usual_batch(self, params) -> Mapping[str, Tensor]:
        length = params["longest"] // self.share
        return super().batch({**params, "sequence_length": length}, Split.TRAIN)


PADDED = {"batch_size": 8, "longest": 512, "width": 32, "depth": 2}


def _peaks(traced, phases):
    return [traced.peak_bytes_by_phase[phase] for phase in phases]


class TestLastBatches:
    def test_of_windows_of_bytes(self):
        model = LanguageModel(held_out_tokens=2_600, evaluation_context=256)
        params = {"batch_size": 8, "micro_batch_size": 4, "sequence_length": 64, "width": 8}
        # a step takes 8 x 64 = 512 tokens; of 3,000 are left 440: 4 rows, 2 rows, 56 bytes
        found = last_batches(model, params, num_tokens=3_000)
        assert [shapes["inputs"][0] for shapes in found.training] == [(2, 64), (1, 56)]
        assert found.num_full == 1
        # 2,600 bytes have 2,599 targets: 10 windows of 256, 4 at a time, and one of 39
        assert [shapes["inputs"] for shapes in found.held_out] == [
            ((2, 256), torch.int64),
            ((1, 39), torch.int64),
        ]

    def test_steps_of_one_size_have_none(self):
        assert last_batches(Rows(), {"batch_size": 5}, num_tokens=35) == LastBatches()

    def test_of_padded_data_nobody_knows_them(self):
        found = last_batches(PaddedSample(), PADDED, num_tokens=10_001)
        assert (found.training, found.num_full) == ((), 0)


class TestLastStep:
    def test_it_comes_after_the_full_ones_and_before_the_evaluation(self):
        params = {"batch_size": 256, "depth": 1}
        traced = trace(Rows(), params, last=last_batches(Rows(), params, num_tokens=256 * 3 + 7))
        phases = list(dict.fromkeys(event.phase for event in traced.events))
        assert phases == [
            Phase.MODEL_CREATION,
            Phase.STEP_1,
            Phase.STEP_2,
            Phase.LAST_BATCH,
            Phase.EVALUATION,
        ]
        # 7 rows of 1024 numbers in fp32
        inputs = [event for event in traced.events if event.part is Part.INPUTS]
        sizes = [each.num_bytes for each in inputs if each.phase is Phase.LAST_BATCH]
        assert 7 * 1024 * 4 in sizes

    def test_full_micro_batches_of_the_last_step_wait_beside_one(self):
        # 21 rows, 4 at a time: 5 full micro-batches, of which 4 wait as one block, and 1 row
        params = {"batch_size": 32, "micro_batch_size": 4, "depth": 1}
        last = last_batches(Rows(), params, num_tokens=32 * 2 + 21)
        traced = trace(Rows(), params, last=last)
        made = [
            event.num_bytes
            for event in traced.events
            if event.phase is Phase.LAST_BATCH and event.part is Part.INPUTS and event.num_bytes > 0
        ]
        row_bytes = 1024 * 4
        assert made == [4 * row_bytes, 16 * row_bytes, row_bytes]

    @pytest.mark.parametrize("num_left", [1, 3, 200])
    def test_it_allocates_no_more(self, num_left):
        params = {"batch_size": 256, "depth": 3}
        last = last_batches(Rows(), params, num_tokens=256 * 3 + num_left)
        plain, found = trace(Rows(), params), trace(Rows(), params, last=last)
        assert found.peak_bytes_by_phase[Phase.LAST_BATCH] <= plain.peak_bytes
        assert found.peak_bytes == plain.peak_bytes
        assert found.work == plain.work

    def test_blocks_of_other_sizes_find_no_room_in_the_other_pool(self):
        """Worked by hand: what is cached for blocks above 1 MiB serves none below."""
        allocator = CachingAllocator(SETTINGS)
        for block in range(8):  # activations of 2 MiB each, four a segment of 20 MiB
            allocator.malloc(block, 2 * MIB)
        for block in range(8):
            allocator.free(block)
        before = allocator.statistics()
        for block in range(8):  # half as many rows: 1 MiB each, two a segment of 2 MiB
            allocator.malloc(8 + block, 1 * MIB)
        after = allocator.statistics()
        assert (before.peak_reserved_bytes, after.peak_reserved_bytes) == (20 * MIB, 28 * MIB)
        assert after.peak_allocated_bytes == before.peak_allocated_bytes

    def test_it_may_reserve_more_and_the_peak_covers_that(self):
        params = {"batch_size": 512, "depth": 8}  # activations of 2 MiB
        last = last_batches(Rows(), params, num_tokens=512 * 3 + 200)  # of 0.8 MiB
        plain = trace(Rows(), params, target=Cuda(architecture=A100))
        found = trace(Rows(), params, target=Cuda(architecture=A100), last=last)
        assert found.peak_bytes == plain.peak_bytes
        used = reserved(found.events, SETTINGS)
        assert used.phase is Phase.LAST_BATCH
        assert used.reserved_bytes > reserved(plain.events, SETTINGS).reserved_bytes
        assert used.reserved_bytes == max(used.by_phase.values())


class TestLastOfTheEvaluation:
    def test_it_is_traced_after_two_full_ones(self):
        # 10 held-out rows, 4 at a time: 2 are left
        last = last_batches(Rows(), {"batch_size": 4}, num_tokens=8)
        traced = trace(Rows(), {"batch_size": 4, "depth": 1}, last=last)
        made = [
            event.num_bytes
            for event in traced.events
            if event.phase is Phase.EVALUATION and event.part is Part.INPUTS and event.num_bytes > 0
        ]
        assert made == [4 * 1024 * 4, 4 * 1024 * 4, 2 * 1024 * 4]


class TestLongestBatch:
    def test_steps_run_on_usual_batches_and_the_longest_comes_after(self):
        padded = trace(PaddedSample(), PADDED)
        usual = trace(Sample(), {**PADDED, "sequence_length": 128})
        longest = trace(Sample(), {**PADDED, "sequence_length": 512})
        steps = (Phase.STEP_1, Phase.STEP_2)
        assert _peaks(padded, steps) == _peaks(usual, steps)
        assert padded.peak_phase is Phase.LONGEST_BATCH
        assert padded.peak_bytes == longest.peak_bytes
        assert padded.parts == longest.parts

    def test_it_may_reserve_more_than_batches_that_are_all_as_long(self):
        params = {"batch_size": 16, "longest": 512, "width": 64, "depth": 4}
        target = Cuda(architecture=A100)
        padded = reserved(trace(PaddedSample(share=2), params, target=target).events, SETTINGS)
        longest = trace(Sample(), {**params, "sequence_length": 512}, target=target)
        assert padded.phase is Phase.LONGEST_BATCH
        assert padded.reserved_bytes > reserved(longest.events, SETTINGS).reserved_bytes

    def test_the_work_of_a_step_is_that_of_the_largest(self):
        longest = trace(Sample(), {**PADDED, "sequence_length": 512})
        assert trace(PaddedSample(), PADDED).work == longest.work

    def test_predictions_count_it(self, tmp_path):
        machine = GpuMemory(architecture=A100, context=CONTEXT)
        predicted = predict(PaddedSample(), PADDED, machine)
        assert predicted.phase == "longest_batch"
        space = [{**PADDED, "batch_size": size} for size in range(2, 24)]
        several = Predictor(PaddedSample(), machine, tmp_path, space=space)
        assert [several(params) for params in space[5:7]] == [
            predict(PaddedSample(), params, machine) for params in space[5:7]
        ]

    def test_what_is_kept_hangs_on_the_usual_batch(self, tmp_path):
        machine = GpuMemory(architecture=A100, context=CONTEXT)
        for share in (2, 4, 2):
            objective = PaddedSample(share)
            del objective.share  # but for its batches, the objective looks the same
            objective.usual_batch = lambda params, share=share: {
                "values": torch.zeros((8, params["longest"] // share), dtype=torch.int64)
            }
            found = Predictor(objective, machine, tmp_path)(PADDED)
            assert found == predict(objective, PADDED, machine)
