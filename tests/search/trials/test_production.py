import errno
import os
import threading
from dataclasses import replace

import pytest
import torch
from tiny_objective import TinyModel

from objectives.language_model import LanguageModel
from search.compression.params import Deployment, Teacher
from search.compression.trained import Trained, load_trained
from search.errors import InputError, MachineError
from search.memory.device import device_here
from search.objective import Split
from search.results import Outcome
from search.trials import production
from search.trials.production import ProductionJob, train

PARAMS = {"width": 4, "batch_size": 8}


@pytest.fixture
def job(tmp_path):
    return ProductionJob(
        objective=TinyModel(),
        params=PARAMS,
        num_tokens=64,
        num_threads=1,
        device=device_here(),
        folder=tmp_path / "trained",
    )


def trained(job, *, steps=None):
    """The run, stopped after so many steps; the number of steps it took."""
    stop, seen = threading.Event(), []

    def on_step(tokens_seen, _loss):
        seen.append(tokens_seen)
        if len(seen) == steps:
            stop.set()

    return train(job, on_step=on_step, stop=stop), seen


def test_a_stopped_run_goes_on_from_its_checkpoint_to_the_same_weights(job, tmp_path):
    whole, _ = trained(replace(job, folder=tmp_path / "whole"))
    assert trained(job, steps=3) == (None, [8, 16, 24])
    finished, seen = trained(job)
    assert seen == [32, 40, 48, 56, 64]
    assert finished.metrics["bits_per_byte"] == whole.metrics["bits_per_byte"]
    weights = torch.load(job.folder / "model.pt")
    for name, tensor in torch.load(tmp_path / "whole" / "model.pt").items():
        assert torch.equal(weights[name], tensor)


def test_a_finished_run_is_judged_again_without_a_step_or_a_speed(job):
    first, _ = trained(job)
    again, seen = trained(job)
    assert seen == []
    assert again.outcome is Outcome.COMPLETED
    assert again.metrics["bits_per_byte"] == first.metrics["bits_per_byte"]
    assert "tokens_per_second" not in again.metrics


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"num_tokens": 128}, "tokens"),
        ({"params": {"width": 5, "batch_size": 8}}, "params"),
        ({"params": {"width": 5, "batch_size": 8}, "num_tokens": 128}, "params and tokens"),
    ],
)
def test_the_checkpoint_of_another_run_is_left_alone(job, other, named):
    trained(job, steps=1)
    before = (job.folder / "checkpoint.pt").read_bytes()
    with pytest.raises(InputError, match=f"is of a run with other {named} .*--output"):
        trained(replace(job, **other))
    assert (job.folder / "checkpoint.pt").read_bytes() == before


def test_a_run_on_other_data_does_not_go_on(job, monkeypatch):
    trained(job, steps=1)
    monkeypatch.setattr(TinyModel, "provenance", {"corpus": "none", "sha256": "1"})
    with pytest.raises(InputError, match="is of a run with other data"):
        trained(job)


@pytest.mark.parametrize("content", [b"", b"junk" * 100])
def test_a_file_that_is_no_checkpoint_is_said(job, content):
    job.folder.mkdir()
    (job.folder / "checkpoint.pt").write_bytes(content)
    with pytest.raises(InputError, match="is no checkpoint of a production run"):
        trained(job)


def test_a_checkpoint_of_another_program_is_said(job):
    job.folder.mkdir()
    torch.save({"state_dict": {}}, job.folder / "checkpoint.pt")
    with pytest.raises(InputError, match="is no checkpoint of a production run"):
        trained(job)


def test_a_folder_that_cannot_be_made_is_said_before_training(job):
    job.folder.write_text("a file")
    with pytest.raises(MachineError, match="no folder can be made there"):
        trained(job)


@pytest.mark.parametrize(
    "fault", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), RuntimeError("unexpected pos 64")]
)
def test_a_full_disk_is_said_and_leaves_the_checkpoint_before_it(job, monkeypatch, fault):
    trained(job, steps=1)
    before = (job.folder / "checkpoint.pt").read_bytes()

    def full(_value, _file):
        raise fault

    monkeypatch.setattr(production.torch, "save", full)
    with pytest.raises(MachineError, match=r"checkpoint.pt cannot be written: .*free some space"):
        trained(job)
    assert [file.name for file in job.folder.iterdir()] == ["checkpoint.pt"]
    assert (job.folder / "checkpoint.pt").read_bytes() == before


def test_it_takes_no_more_threads_than_there_are_cores(job, monkeypatch):
    asked = []
    monkeypatch.setattr(production.torch, "set_num_threads", asked.append)
    trained(replace(job, num_threads=4096), steps=1)
    assert asked == [len(os.sched_getaffinity(0))]


@pytest.mark.timeout(600)  # two pairs of processes are started
@pytest.mark.parametrize("sharding", ["full"])
def test_two_processes_go_on_from_their_checkpoint_to_the_weights_of_one(job, tmp_path, sharding):
    trained(replace(job, folder=tmp_path / "alone"))
    params = {**PARAMS, "world_size": 2, "sharding": sharding}
    together = replace(job, params=params, objective_path="tiny_objective:TinyModel")
    assert trained(together, steps=3) == (None, [8, 16, 24])
    finished, seen = trained(together)
    assert seen == [32, 40, 48, 56, 64]
    assert len(finished.details["peak_bytes_by_rank"].split(",")) == 2
    weights = torch.load(job.folder / "model.pt")
    for name, tensor in torch.load(tmp_path / "alone" / "model.pt").items():
        assert torch.allclose(weights[name], tensor, rtol=1e-5)


@pytest.mark.timeout(600)
def test_what_another_process_meets_ends_the_run_with_its_reason(job, tmp_path):
    params = {**PARAMS, "world_size": 2, "ending": "killed_of_rank_1"}
    killed = {"killed": str(tmp_path / "killed")}
    together = replace(
        job,
        params=params,
        objective=TinyModel(**killed),
        objective_path="tiny_objective:TinyModel",
        data=killed,
    )
    with pytest.raises(MachineError, match="rank 1 ended with -9"):
        trained(together)


DATA = {"held_out_tokens": 2_048, "evaluation_context": 64}


@pytest.fixture
def language_job(tmp_path):
    """A run whose model is cut and quantized in the end."""
    compressed = {"pruned_channels": 0.5, "quantization": "int8-weight-only"}
    return ProductionJob(
        objective=LanguageModel(**DATA),
        params={"width": 32, "depth": 1, "sequence_length": 16, "batch_size": 8, **compressed},
        num_tokens=1_024,
        num_threads=1,
        device=device_here(),
        folder=tmp_path / "trained",
        data=DATA,
        origin={"sweep_id": "abc", "trial": 3},
        deployment=Deployment(serving_batch_size=2, quantizes=True),
    )


def test_a_compressed_model_is_loaded_again_with_the_same_outputs(language_job):
    finished, _ = trained(language_job)
    model, objective = load_trained(language_job.folder), language_job.objective
    held_out = objective.data(language_job.params, Split.HELD_OUT, seed=0)
    with torch.no_grad():
        judged = objective.evaluate(model, held_out)
    assert judged["bits_per_byte"] == finished.metrics["bits_per_byte_after"]
    assert judged["bits_per_byte"] != finished.metrics["bits_per_byte"]
    assert len(model.blocks[0].feed_forward[0].weight) == 64  # of 128
    size = (language_job.folder / "compressed.pt").stat().st_size
    assert finished.metrics["model_size"] == size
    assert size < (language_job.folder / "model.pt").stat().st_size
    assert finished.details["num_layers_quantized"] == 5


def test_the_weights_as_trained_stay_beside_it(language_job):
    trained(language_job)
    plain = replace(language_job, deployment=None)
    trained(plain)  # nothing is left to train, so it is described anew
    model = load_trained(plain.folder)
    assert len(model.blocks[0].feed_forward[0].weight) == 128
    assert Trained.read(plain.folder).origin == {"sweep_id": "abc", "trial": 3}


def test_other_compression_goes_on_from_the_same_checkpoint(language_job):
    first, _ = trained(language_job)
    less = replace(language_job, params={**language_job.params, "pruned_channels": 0.25})
    second, seen = trained(less)
    assert seen == []
    assert second.metrics["bits_per_byte"] == first.metrics["bits_per_byte"]
    assert second.metrics["model_size"] > first.metrics["model_size"]


def test_a_production_run_learns_from_its_teacher(language_job, tmp_path):
    params = {"width": 64, "depth": 1}
    torch.save(language_job.objective.model(params).state_dict(), tmp_path / "model.pt")
    teacher = Teacher(name="larger", params=params, weights=str(tmp_path / "model.pt"))
    deployment = replace(language_job.deployment, teacher=teacher)
    alone, _ = trained(language_job)
    taught, _ = trained(replace(language_job, deployment=deployment, folder=tmp_path / "taught"))
    assert taught.metrics["bits_per_byte"] != alone.metrics["bits_per_byte"]
    with pytest.raises(InputError, match="other teacher"):
        trained(replace(language_job, deployment=deployment))
