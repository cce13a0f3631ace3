import json
from dataclasses import dataclass, field

import pytest

from search.memory import prediction
from search.memory.machine import OVERHEAD, CpuMemory
from search.memory.prediction import Predictor, predict
from search.memory.sample import Sample, SampleParams
from search.memory.trace import trace
from search.objective import MEMORY_NEUTRAL

PARAMS = {"batch_size": 4, "learning_rate": 1e-3}


@dataclass(frozen=True, kw_only=True)
class TurningParams(SampleParams):
    turn: float = field(default=0.0, metadata=MEMORY_NEUTRAL)


class CountingSample(Sample):
    """Knows how often a model was made."""

    num_models = 0

    def model(self, params):
        type(self).num_models += 1
        return super().model(params)


@pytest.fixture(autouse=True)
def _from_nought():
    CountingSample.num_models = 0


def predictor(tmp_path, objective=None, overhead_bytes=1000) -> Predictor:
    machine = CpuMemory(overhead_bytes=overhead_bytes)
    return Predictor(objective or CountingSample(), machine, tmp_path)


def test_is_the_traced_peak_and_the_machines_constant():
    predicted = predict(Sample(), PARAMS, CpuMemory(overhead_bytes=5000))
    traced = trace(Sample(), PARAMS)
    assert predicted.expected_bytes == traced.peak_bytes + 5000
    assert predicted.low_bytes <= predicted.expected_bytes <= predicted.high_bytes
    assert predicted.parts == {**traced.parts, OVERHEAD: 5000}
    assert predicted.phase == traced.peak_phase


class TestCache:
    def test_what_changes_no_memory_is_not_traced_again(self, tmp_path):
        predicts = predictor(tmp_path)
        first = predicts(PARAMS)
        assert predicts({**PARAMS, "learning_rate": 0.5, "seed": 9}) == first
        assert predicts({**PARAMS, "micro_batch_size": "equal"}) == first
        assert predicts({**PARAMS, "micro_batch_size": 4}) == first
        assert CountingSample.num_models == 1

    def test_nor_is_what_the_objective_says_changes_none(self, tmp_path):
        sample = CountingSample()
        sample.parameters = TurningParams
        space = [{**PARAMS, "turn": index / 10} for index in range(8)]
        predicts = Predictor(sample, CpuMemory(overhead_bytes=0), tmp_path, space)
        assert len({predicts(params).expected_bytes for params in space}) == 1
        assert CountingSample.num_models == 1

    def test_outlives_the_process(self, tmp_path):
        first = predictor(tmp_path)(PARAMS)
        assert predictor(tmp_path)(PARAMS) == first
        assert CountingSample.num_models == 1

    def test_lies_in_the_users_folder_where_none_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        Predictor(CountingSample(), CpuMemory(overhead_bytes=0))(PARAMS)
        assert len(list((tmp_path / "paretune" / "predictions").glob("*.json"))) == 1

    @pytest.mark.parametrize(
        "changed",
        [
            {"batch_size": 8},
            {"micro_batch_size": 2},
            {"precision": "bf16-mixed"},
            {"clip_norm": 0.0},
            {"depth": 3},
        ],
    )
    def test_what_changes_memory_is_traced(self, tmp_path, changed):
        predicts = predictor(tmp_path)
        predicts(PARAMS)
        predicts({**PARAMS, **changed})
        assert CountingSample.num_models == 2

    def test_the_objectives_own_settings_count(self, tmp_path):
        predictor(tmp_path)(PARAMS)
        other = CountingSample()
        other.vocabulary = 1000
        predictor(tmp_path, other)(PARAMS)
        assert CountingSample.num_models == 2

    def test_so_does_the_machine(self, tmp_path):
        predictor(tmp_path)(PARAMS)
        assert OVERHEAD in predictor(tmp_path, overhead_bytes=7)(PARAMS).parts
        assert CountingSample.num_models == 2

    def test_changed_code_is_traced_anew(self, tmp_path, monkeypatch):
        predictor(tmp_path)(PARAMS)
        monkeypatch.setattr(prediction, "_source_hash", lambda package: f"another {package}")
        predictor(tmp_path)(PARAMS)
        assert CountingSample.num_models == 2

    @pytest.mark.parametrize("content", ["", "{", json.dumps({"expected_bytes": 1})])
    def test_a_damaged_file_is_written_again(self, tmp_path, content):
        first = predictor(tmp_path)(PARAMS)
        (file,) = tmp_path.glob("*.json")
        file.write_text(content)
        assert predictor(tmp_path)(PARAMS) == first
        assert json.loads(file.read_text())["expected_bytes"] == first.expected_bytes

    def test_a_folder_that_takes_nothing_is_no_fault(self, tmp_path):
        (tmp_path / "occupied").write_text("")
        assert predictor(tmp_path / "occupied")(PARAMS).expected_bytes > 0
