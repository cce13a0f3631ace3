import json

import pytest
import torch

from objectives.image_classifier import ImageClassifier
from objectives.language_model import LanguageModel
from search import home
from search.compression.trained import Trained, find_teacher, load_trained, path_of
from search.errors import InputError

DATA = {"held_out_tokens": 2_048, "evaluation_context": 64}
PARAMS = {"width": 32, "depth": 1}


@pytest.fixture(scope="module")
def objective():
    return LanguageModel(**DATA)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("PARETUNE_HOME", str(tmp_path))


def write(folder, objective, **fields):
    folder.mkdir(parents=True)
    torch.save(objective.model(PARAMS).state_dict(), folder / "model.pt")
    described = {
        "objective": path_of(objective),
        "data": DATA,
        "provenance": objective.provenance,
        "params": PARAMS,
        "num_tokens": 100,
        "weights_sha256": "0123456789abcdef",
        "origin": {"sweep_id": "abc", "trial": 3},
    }
    Trained(**{**described, **fields}).write(folder)


def sweep(tmp_path, *, trial=3, label="latest"):
    """The folder of a sweep, as far as a teacher looks into it."""
    folder = tmp_path / "larger"
    (folder / "picks").mkdir(parents=True, exist_ok=True)
    (folder / "picks" / f"{label}.json").write_text(json.dumps({"trial": trial}))
    manifest = dict.fromkeys(home.Manifest.__dataclass_fields__, "")
    listed = {"dimensions": [], "objectives": [], "metrics": [], "sweep_id": "abc"}
    (folder / "manifest.json").write_text(json.dumps({**manifest, **listed}))


def test_a_pick_is_found_by_its_sweep(tmp_path, objective):
    sweep(tmp_path)
    write(tmp_path / "trained" / "PICK", objective)
    found = find_teacher("larger", objective)
    assert found.name == "larger, weights 0123456789ab"
    assert found.params == PARAMS
    assert found.weights == str(tmp_path / "trained" / "PICK" / "model.pt")


def test_a_label_names_another_pick(tmp_path, objective):
    sweep(tmp_path, trial=4)
    sweep(tmp_path, trial=3, label="small")
    write(tmp_path / "trained" / "PICK", objective)
    assert find_teacher("larger/small", objective).params == PARAMS
    with pytest.raises(InputError, match="no pick is called 'huge'"):
        find_teacher("larger/huge", objective)


def test_a_pick_that_was_not_trained_yet_says_how(tmp_path, objective):
    sweep(tmp_path, trial=4)
    write(tmp_path / "trained" / "PICK", objective)
    with pytest.raises(InputError) as refused:
        find_teacher("larger", objective)
    assert str(refused.value) == (
        "the pick of 'larger', trial 4, was not trained yet (run: paretune export larger "
        "-o PICK.yaml, then paretune train PICK.yaml)"
    )


def test_a_folder_is_a_teacher_too(tmp_path, objective):
    write(tmp_path / "elsewhere", objective)
    assert find_teacher(str(tmp_path / "elsewhere"), objective).params == PARAMS


def test_no_such_sweep(objective):
    with pytest.raises(InputError, match="there is no sweep called 'larger'"):
        find_teacher("larger", objective)


@pytest.mark.parametrize("named", ["/nowhere/PICK", "./nowhere/PICK"])
def test_no_such_folder(objective, named):
    with pytest.raises(InputError, match="nowhere/PICK holds no trained model"):
        find_teacher(named, objective)


def test_another_objective_or_other_data_are_refused(tmp_path, objective):
    write(tmp_path / "a", objective)
    with pytest.raises(InputError, match=r"this sweep of objectives\.image_classifier:ImageCla"):
        find_teacher(str(tmp_path / "a"), ImageClassifier())
    write(tmp_path / "b", objective, provenance={**objective.provenance, "corpus": "other"})
    with pytest.raises(InputError, match=r"other data than this sweep \(corpus differ\)"):
        find_teacher(str(tmp_path / "b"), objective)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no trained model"):
        load_trained(tmp_path)


def test_a_model_is_loaded_by_its_description_alone(tmp_path, objective):
    write(tmp_path / "run", objective)
    model = load_trained(tmp_path / "run")
    weights = torch.load(tmp_path / "run" / "model.pt")
    assert all(torch.equal(each, weights[name]) for name, each in model.state_dict().items())
