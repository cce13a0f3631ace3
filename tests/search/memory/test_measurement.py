import json

import pytest

from search.memory import measurement
from search.memory.device import Device, device_here
from search.memory.measurement import overhead_bytes
from search.results import PredictedMemory
from search.units import MIB

CPU = Device(name="a processor", kind="cpu", capacity_bytes=2**40)


@pytest.fixture(scope="module")
def peaks(fresh):
    """MiB that were measured of tensors of known size, all in one process."""
    return fresh("""
        from pathlib import Path
        from search.memory import measurement
        found = {}
        with measure_peak(device) as peak:
            for _ in range(3):
                torch.ones(64 * 2**18)
            found["inside"] = peak.num_bytes
            torch.ones(96 * 2**18)
        torch.ones(200 * 2**18)
        found["after"] = peak.num_bytes

        with measure_peak(device) as peak:
            torch.ones(20 * 2**18)
        found["anew"] = peak.num_bytes

        try:
            with measure_peak(device) as peak:
                torch.ones(48 * 2**18)
                raise KeyError
        except KeyError:
            found["after a fault"] = peak.num_bytes

        measurement._CLEAR_REFS = Path("/proc/self/not_there")
        with measure_peak(device) as peak:
            tensor = torch.ones(64 * 2**18)
            found["sampled inside"] = peak.num_bytes
            del tensor
        found["sampled"] = peak.num_bytes
        print(json.dumps({name: size / 2**20 for name, size in found.items()}))
    """)


class TestPeak:
    def test_is_the_most_that_was_used_at_once(self, peaks):
        assert peaks["inside"] == pytest.approx(64, abs=1)
        assert peaks["after"] == pytest.approx(96, abs=1)

    def test_starts_anew_each_time(self, peaks):
        assert peaks["anew"] == pytest.approx(20, abs=1)

    def test_is_known_after_a_fault(self, peaks):
        assert peaks["after a fault"] == pytest.approx(48, abs=1)

    def test_is_sampled_where_the_kernel_keeps_no_mark(self, peaks):
        assert peaks["sampled inside"] == pytest.approx(64, abs=1)
        assert peaks["sampled"] == pytest.approx(64, abs=1)


class TestOverhead:
    @pytest.fixture(autouse=True)
    def own_cache(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        self.file = tmp_path / "paretune" / "devices.json"

    def test_is_measured_once_and_kept(self, monkeypatch):
        first = overhead_bytes(device_here())
        assert 0 <= first < 16 * MIB
        monkeypatch.setattr(measurement, "_measured_elsewhere", lambda: 1 / 0)
        assert overhead_bytes(device_here()) == first
        assert list(json.loads(self.file.read_text()).values()) == [first]

    def test_another_machine_is_measured_anew(self, monkeypatch):
        monkeypatch.setattr(measurement, "_measured_elsewhere", lambda: 5)
        overhead_bytes(CPU)
        monkeypatch.setattr(measurement, "_measured_elsewhere", lambda: 7)
        other = Device(name="another", kind="cpu", capacity_bytes=1)
        assert (overhead_bytes(CPU), overhead_bytes(other)) == (5, 7)

    def test_a_damaged_file_is_no_fault(self, monkeypatch):
        monkeypatch.setattr(measurement, "_measured_elsewhere", lambda: 5)
        self.file.parent.mkdir()
        self.file.write_text("{")
        assert overhead_bytes(CPU) == 5


_PREDICTED_AND_MEASURED = """
    from dataclasses import asdict
    from objectives.language_model import LanguageModel
    from search.memory.machine import CpuMemory
    from search.memory.prediction import predict
    from search.training import TrainingRun
    objective = LanguageModel(held_out_tokens=8_000)
    found = []
    for params in CONFIGURATIONS:
        with measure_peak(device) as peak:
            run = TrainingRun(objective, params, num_tokens=10**9, device=device.torch_device)
            run.step()
            run.step()
            run.evaluate()
            del run
        release_memory(device)
        found.append(peak.num_bytes)
    overhead = overhead_bytes(device)
    machine = CpuMemory(overhead_bytes=overhead)
    predicted = [predict(objective, params, machine) for params in CONFIGURATIONS]
    print(json.dumps([[asdict(one), size] for one, size in zip(predicted, found)]))
"""
"""Measured before anything is predicted: a trace leaves holes on the heap."""


class TestPrediction:
    def check(self, fresh, configurations):
        code = _PREDICTED_AND_MEASURED.replace("CONFIGURATIONS", repr(configurations))
        for state, measured_bytes in fresh(code):
            predicted = PredictedMemory(**state)
            assert predicted.expected_bytes == pytest.approx(measured_bytes, rel=0.08)

    def test_is_what_is_measured(self, fresh):
        base = {"width": 64, "depth": 2, "batch_size": 32, "sequence_length": 256}
        self.check(
            fresh,
            [
                base,
                {**base, "activation_checkpointing": True, "dropout": 0.1, "optimizer": "sgd"},
                {**base, "precision": "bf16-mixed", "batch_size": 16},
            ],
        )

    @pytest.mark.campaign
    @pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "16-mixed"])
    @pytest.mark.parametrize("checkpointed", [False, True])
    def test_is_what_is_measured_whatever_the_kind(self, fresh, precision, checkpointed):
        base = {"precision": precision, "activation_checkpointing": checkpointed}
        self.check(
            fresh,
            [
                {**base, "width": 256, "depth": 2, "batch_size": 16, "sequence_length": 256},
                {**base, "width": 128, "depth": 4, "batch_size": 64, "sequence_length": 128,
                 "micro_batch_size": 32, "optimizer": "adam"},
                {**base, "width": 128, "depth": 2, "batch_size": 16, "sequence_length": 512,
                 "dropout": 0.1, "optimizer": "sgd"},
            ],
        )  # fmt: skip
