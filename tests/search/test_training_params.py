import pytest

from search.errors import InputError
from search.training_params import TrainingParams, memory_key, micro_batch_size

ANY = {"width": 32, "sequence_length": 32, "batch_size": 8, "learning_rate": 3e-3}


class TestParams:
    @pytest.mark.parametrize(("micro", "wanted"), [("equal", 32), (32, 32), (4, 4), (1, 1)])
    def test_micro_batch_size_is_resolved(self, micro, wanted):
        assert micro_batch_size({"batch_size": 32, "micro_batch_size": micro}) == wanted

    def test_auto_needs_a_prediction(self):
        with pytest.raises(InputError, match="'auto' must be resolved"):
            micro_batch_size({"micro_batch_size": "auto"})

    @pytest.mark.parametrize(
        ("params", "message"),
        [
            ({"learning_rate": 0.0}, "learning_rate must be above 0"),
            ({"batch_size": 0}, "batch_size must be above 0"),
            ({"weight_decay": -0.1}, "weight_decay must not be negative"),
            ({"clip_norm": -1.0}, "clip_norm must not be negative"),
            ({"momentum": 1.0}, "momentum must be from 0 to below 1"),
            ({"warmup_fraction": 1.0}, "warmup_fraction must be from 0 to below 1"),
            ({"micro_batch_size": 0}, "micro_batch_size must be above 0"),
            ({"micro_batch_size": 5}, "micro_batch_size 5 does not divide batch_size 32"),
            ({"micro_batch_size": "most"}, "micro_batch_size must be a number, equal or auto"),
            ({"precision": "fp8"}, "fp8"),
            ({"optimizer": "lion"}, "lion"),
        ],
    )
    def test_what_makes_no_step_is_refused(self, params, message):
        with pytest.raises(ValueError, match=message):
            TrainingParams.of(params)

    def test_other_dimensions_are_left_to_the_objective(self):
        assert TrainingParams.of({"width": 64}) == TrainingParams()


class TestMemoryKey:
    @pytest.mark.parametrize("change", [{"learning_rate": 1e-5}, {"seed": 9}, {"momentum": 0.5}])
    def test_forgets_what_changes_no_size(self, change):
        params = {**ANY, "momentum": 0.9, "seed": 0}
        assert memory_key({**params, **change}) == memory_key(params)

    def test_forgets_what_the_objective_says_changes_none(self):
        assert memory_key({**ANY, "rotation": 5.0}, {"rotation"}) == memory_key(ANY)

    @pytest.mark.parametrize("change", [{"momentum": 0.0}, {"batch_size": 4}, {"width": 8}])
    def test_keeps_what_does(self, change):
        params = {**ANY, "momentum": 0.9}
        assert memory_key({**params, **change}) != memory_key(params)
