"""Trials with compression, in this process."""

import pytest
import torch

from objectives.language_model import LanguageModel
from search.compression.params import Deployment, Teacher
from search.memory.device import device_here
from search.memory.machine import CpuMemory
from search.memory.measurement import prepare_process
from search.memory.prediction import Predictor
from search.results import Outcome
from search.trials.attempt import Task, attempt
from search.units import GIB, MIB

PARAMS = {"width": 32, "depth": 1, "sequence_length": 16, "batch_size": 8, "learning_rate": 1e-2}
MEASURED = {"model_size", "serving_memory", "latency", "serving_throughput"}


@pytest.fixture(scope="module")
def objective():
    torch.set_num_threads(1)
    prepare_process()
    return LanguageModel(held_out_tokens=2_048, evaluation_context=64)


def ended(
    objective, *, served=2, num_tokens=2_048, budget_bytes=4 * GIB, deployment=None, **params
):
    task = Task(
        number=0,
        params={**PARAMS, **params},
        num_tokens=num_tokens,
        budget_bytes=budget_bytes,
        time_limit_seconds=None,
        objectives=("bits_per_byte_after", "serving_memory"),
    )
    deployment = deployment or Deployment(serving_batch_size=served)
    trial = attempt(task, objective=objective, device=device_here(), deployment=deployment)
    try:
        while True:
            next(trial)
    except StopIteration as end:
        return end.value


def test_without_compression_it_is_judged_as_it_was_trained(objective):
    trial = ended(objective)
    assert (trial.outcome, trial.message) == (Outcome.COMPLETED, "")
    assert set(trial.metrics) > MEASURED
    assert trial.metrics["bits_per_byte_after"] == trial.metrics["bits_per_byte"]
    parameters = trial.details["num_parameters"]
    assert 4 * parameters < trial.metrics["model_size"] < 4 * parameters + 10_000
    assert trial.metrics["latency"] > 0
    # two windows of 64 bytes
    throughput = 2 * 64 / trial.metrics["latency"]
    assert trial.metrics["serving_throughput"] == pytest.approx(throughput)
    assert trial.details["num_timed_calls"] >= 5
    assert trial.details["latency_spread"] >= 0


def test_what_was_done_is_on_record(objective):
    trial = ended(objective, pruned_channels=0.5, pruned_weights=0.5, quantization="int8-dynamic")
    assert (trial.outcome, trial.message) == (Outcome.COMPLETED, "")
    assert trial.metrics["bits_per_byte_after"] > trial.metrics["bits_per_byte"]
    assert (trial.details["num_layers_cut"], trial.details["num_units_taken_out"]) == (1, 64)
    assert trial.details["share_of_zeros"] == pytest.approx(0.5, abs=0.01)
    assert trial.details["num_layers_quantized"] == 5


def test_training_is_the_same_whatever_comes_after(objective):
    dense, cut = ended(objective), ended(objective, pruned_channels=0.5)
    assert dense.metrics["bits_per_byte"] == cut.metrics["bits_per_byte"]
    assert dense.curve == cut.curve
    assert cut.metrics["model_size"] < dense.metrics["model_size"]


def test_a_checkpointed_model_is_compressed_too(objective):
    plain = ended(objective, pruned_channels=0.5)
    checkpointed = ended(objective, pruned_channels=0.5, activation_checkpointing=True)
    assert checkpointed.outcome is Outcome.COMPLETED, checkpointed.message
    assert checkpointed.metrics["bits_per_byte_after"] == plain.metrics["bits_per_byte_after"]


def test_memory_of_serving_counts_in_the_peak(objective):
    small, large = ended(objective, served=1), ended(objective, served=256)
    assert large.metrics["serving_memory"] > 4 * small.metrics["serving_memory"]
    assert large.metrics["peak_memory"] >= large.metrics["serving_memory"]
    assert small.metrics["peak_memory"] < large.metrics["peak_memory"]


def test_serving_beyond_the_budget_is_out_of_memory(objective):
    trial = ended(objective, served=4_096, budget_bytes=128 * MIB)
    assert trial.outcome is Outcome.OUT_OF_MEMORY
    assert "bits_per_byte" in trial.metrics


def test_what_a_model_does_not_allow_fails_its_trial_with_the_mend():
    class Headless(LanguageModel):
        def model(self, params):
            del params
            return torch.nn.Sequential(torch.nn.Embedding(256, 256))

    trial = ended(Headless(held_out_tokens=2_048, evaluation_context=64), pruned_channels=0.5)
    assert trial.outcome is Outcome.FAILED
    assert trial.message.startswith("pruned_channels: the model has no layer whose units can be")


@pytest.mark.parametrize("served", [2, 512])
def test_memory_is_what_was_predicted_for_training_and_serving(objective, served, tmp_path):
    """Within 10 % and a MiB: beside a small served batch the training decides, else serving."""
    device = device_here()
    machine = CpuMemory(overhead_bytes=0)
    params = {**PARAMS, "batch_size": 64, "sequence_length": 64, "micro_batch_size": 64}
    predict = Predictor(
        objective, machine, tmp_path, deployment=Deployment(serving_batch_size=served)
    )
    predicted = predict(params)
    measured = ended(objective, served=served, num_tokens=8_192, **params).metrics["peak_memory"]
    assert predicted.phase == ("serving" if served == 512 else "step_2")
    assert abs(predicted.expected_bytes - measured) < 0.1 * measured + MIB
    assert device.kind != "cpu" or predicted.expected_bytes > 8 * MIB


def test_a_teacher_is_predicted_too(objective, tmp_path):
    params = {**PARAMS, "batch_size": 64, "sequence_length": 64, "micro_batch_size": 64}
    large = {"width": 256, "depth": 4}
    torch.save(objective.model(large).state_dict(), tmp_path / "model.pt")
    teacher = Teacher(name="larger", params=large, weights=str(tmp_path / "model.pt"))
    deployment = Deployment(serving_batch_size=1, teacher=teacher)
    predict = Predictor(
        objective, CpuMemory(overhead_bytes=0), tmp_path / "kept", deployment=deployment
    )
    alone, taught = (
        predict({**params, "distillation_weight": weight}).expected_bytes for weight in (0.0, 0.5)
    )
    # 4 blocks of 12 times 256 squared weights and more, in fp32: 12 MiB, and what they compute
    assert taught > alone + 12 * MIB
    trial = ended(
        objective, deployment=deployment, num_tokens=8_192, distillation_weight=0.5, **params
    )
    measured = trial.metrics["peak_memory"]
    assert abs(taught - measured) < 0.1 * measured + MIB
