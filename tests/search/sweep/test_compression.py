"""The `compression` section of a sweep file."""
# ruff: noqa: ISC004 - in a list of messages each spans as many lines as it needs

import pytest

from objectives.language_model import LanguageModel
from search.compression import quantization
from search.compression.params import compression_metrics
from search.compression.trained import Trained, path_of
from search.errors import FileFaultsError
from search.metric import Goal
from search.sweep.file import parse_sweep, sweep_schema
from search.sweep.space import Choices, FloatRange

TEXT = """\
name: small
objective: {objective}
data: {data}
space: {space}
compression: {compression}
trial: {{tokens: 60_000}}
objectives: {objectives}
trials: 3
"""


def load(compression, **fields):
    given = {
        "objective": "objectives.language_model:LanguageModel",
        "data": "{held_out_tokens: 2_048}",
        "space": "{learning_rate: [1e-3, 1e-2]}",
        "objectives": "{bits_per_byte_after: min, serving_memory: min}",
    }
    text = TEXT.format(compression=compression, **{**given, **fields})
    return parse_sweep(text, path="small.yaml", capacity_bytes=2**40)


def faults(compression, **fields):
    with pytest.raises(FileFaultsError) as refused:
        load(compression, **fields)
    return [str(fault) for fault in refused.value.faults]


def test_its_dimensions_are_searched_or_fixed_like_all_others():
    loaded = load(
        "{pruned_channels: [0, 0.5], pruned_weights: {low: 0, high: 0.8}, quantization: none}"
    )
    assert list(loaded.sweep.space) == ["learning_rate", "pruned_channels", "pruned_weights"]
    assert loaded.sweep.space["pruned_channels"] == Choices((0.0, 0.5))
    assert loaded.sweep.space["pruned_weights"] == FloatRange(low=0, high=0.8)
    assert loaded.sweep.fixed == {"quantization": "none"}
    params = loaded.params_of({"pruned_channels": 0.5, "pruned_weights": 0.1, "learning_rate": 1.0})
    assert (params["pruned_channels"], params["quantization"]) == (0.5, "none")


def test_what_is_left_out_keeps_its_default():
    loaded = load("{serving_batch_size: 8}")
    assert loaded.params_of({"learning_rate": 1.0})["pruned_weights"] == 0.0
    assert loaded.deployment.serving_batch_size == 8
    assert not loaded.deployment.quantizes


@pytest.mark.parametrize("written", ["int8-dynamic", "[none, int8-weight-only]"])
def test_whether_any_trial_quantizes_is_known(written):
    assert load(f"{{quantization: {written}}}").deployment.quantizes


def test_it_may_be_all_that_is_searched():
    loaded = load("{pruned_channels: [0, 0.5]}", space="")
    assert list(loaded.sweep.space) == ["pruned_channels"]


def test_a_plan_does_not_list_what_changes_no_memory_of_training():
    from search.plan import structure_points

    structures, complete = structure_points(load("{pruned_channels: [0, 0.5]}").memory_space)
    assert (structures, complete) == ([{}], True)


def test_metrics_come_with_it_alone():
    names = [metric.name for metric in load("{serving_batch_size: 1}").metrics]
    assert names == [
        *("bits_per_byte", "tokens_per_second", "peak_memory", "energy_per_token"),
        *("cost_per_million_tokens", "mfu", "bits_per_byte_after", "model_size"),
        *("serving_memory", "latency", "serving_throughput"),
    ]
    assert faults("") == [
        "objectives.bits_per_byte_after: 'bits_per_byte_after' is not a known metric "
        "(did you mean 'bits_per_byte'?)",
        "objectives.serving_memory: 'serving_memory' is not a known metric "
        "(did you mean 'peak_memory'?)",
    ]


def test_metrics_have_units_goals_and_a_section():
    accuracy = load(
        "{}",
        objective="objectives.image_classifier:ImageClassifier",
        data="{}",
        objectives="{accuracy_after: max, latency: min}",
    ).objective.metrics
    after, *_, size, memory, latency, throughput = compression_metrics(accuracy)
    assert (after.name, after.goal, after.section) == ("accuracy_after", Goal.MAX, "quality")
    assert [each.unit for each in (size, memory, latency, throughput)] == [
        "B",
        "B",
        "s",
        "tokens/s",
    ]
    assert {each.section for each in (size, memory, latency, throughput)} == {"serving"}


def test_faults_are_told_at_their_place():
    assert sorted(
        faults("{pruned_channels: [0, 1.5], pruned_wieghts: 0.5, quantization: int9}")
    ) == [
        "compression.pruned_channels: must be from 0 to below 1, found 1.5",
        "compression.pruned_wieghts: 'pruned_wieghts' is not a known field "
        "(did you mean 'pruned_weights'?)",
        "compression.quantization: must be 'none', 'int8-dynamic' or 'int8-weight-only', "
        "found 'int9'",
    ]
    assert faults("{serving_batch_size: 0}") == [
        "compression.serving_batch_size: must be at least 1, found 0"
    ]


def test_what_is_given_twice_is_a_fault():
    assert faults("{pruned_weights: 0.5}", space="{pruned_weights: [0, 0.5]}") == [
        "compression.pruned_weights: is given under 'space' too (leave it out of one of the two)"
    ]


def test_distillation_needs_a_teacher():
    assert faults("{distillation_weight: [0, 0.5]}") == [
        "compression.distillation_weight: needs a teacher "
        "(such as `teacher: quickstart`, the sweep of a trained pick)"
    ]


def test_a_teacher_that_is_not_there_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.setenv("PARETUNE_HOME", str(tmp_path))
    assert faults("{teacher: larger, distillation_weight: [0, 0.5]}") == [
        f"compression.teacher: there is no sweep called 'larger' in {tmp_path} "
        "(there are: none yet)"
    ]


def test_a_teacher_brings_its_dimensions(tmp_path, monkeypatch):
    monkeypatch.setenv("PARETUNE_HOME", str(tmp_path))
    objective = LanguageModel(held_out_tokens=2_048)
    Trained(
        objective=path_of(objective),
        data={},
        provenance=objective.provenance,
        params={"width": 128},
        num_tokens=1,
        weights_sha256="0123456789abcdef",
    ).write(tmp_path)
    loaded = load(f"{{teacher: '{tmp_path}', distillation_weight: [0, 0.5]}}")
    assert loaded.deployment.teacher.params == {"width": 128}
    assert loaded.provenance["teacher"] == f"{tmp_path}, weights 0123456789ab"
    params = loaded.params_of({"learning_rate": 1.0, "distillation_weight": 0.5})
    assert params["distillation_temperature"] == 2.0
    assert faults(f"{{teacher: '{tmp_path}'}}", space="{vocabulary: [256, 512]}") == [
        "compression.teacher: it gives scores of shape (128, 256), this model (128, 512) for the "
        "same batch (give both the same vocabulary) (at vocabulary 512)"
    ]


def test_a_model_that_allows_it_not_is_refused_by_name():
    found = faults(
        "{pruned_channels: [0, 0.5]}",
        objective="objectives.text_classifier:TextClassifier",
        data="{}",
        space="{variant: [transformer, embedding], vocabulary: [256]}",
        objectives="{accuracy_after: max}",
    )
    assert found == [
        "compression.pruned_channels: the model has no layer whose units can be taken out "
        "(head: its outputs go into cross_entropy): set it to 0 (at variant 'embedding')"
    ]


def test_a_missing_extra_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr(quantization.importlib.util, "find_spec", lambda _: None)
    assert faults("{quantization: [none, int8-dynamic]}") == [
        "compression.quantization: needs torchao (pip install 'paretune[quant]', or set it to none)"
    ]


def test_a_function_has_no_model_to_compress(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text("def train(params, report): ...", encoding="utf-8")
    found = faults("{pruned_weights: 0.5}", objective="mine:train", data="", objectives="{a: max}")
    assert found == [
        "compression: is for objectives alone: nobody has the model of what trains by itself "
        "(leave it out)"
    ]


def test_the_schema_has_it():
    fields = sweep_schema()["$defs"]["CompressionSettings"]["properties"]
    assert all(field["description"] for field in fields.values())
    assert fields["pruned_weights"]["anyOf"][2] == {"type": "array"}
