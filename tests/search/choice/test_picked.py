import pytest

from search.choice.export import Origin, export_yaml
from search.choice.pick import Pick
from search.choice.picked import load_pick
from search.errors import FileFaultsError, InputError
from search.results import Outcome, Trial

PARAMS = {
    "learning_rate": 1e-3,
    "batch_size": 4,
    "micro_batch_size": "equal",
    "precision": "32-true",
    "sequence_length": 16,
    "width": 32,
    "depth": 1,
    "heads": 2,
}


@pytest.fixture
def load(tmp_path):
    """Loads an exported pick in which each text is replaced by another, as a person edits it."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one two three. " * 400)
    origin = Origin(
        sweep="lm",
        sweep_id="id",
        objective="objectives.language_model:LanguageModel",
        data={"corpus": str(corpus), "held_out_tokens": 512, "evaluation_context": 16},
        num_tokens=1000,
        budget_bytes=2**30,
        cpus=1,
        versions={},
        metrics=(),
    )
    trial = Trial(number=0, params=PARAMS, outcome=Outcome.COMPLETED)
    exported = export_yaml(Pick(trial=trial, reason="", conditions=()), origin)

    def loaded(*edits, prefix=b""):
        text = exported
        for right, wrong in edits:
            assert right in text
            text = text.replace(right, wrong, 1)
        (tmp_path / "pick.yaml").write_bytes(prefix + text.encode())
        return load_pick(tmp_path / "pick.yaml")

    return loaded


def test_a_pick_is_loaded_as_it_was_exported(load):
    picked = load()
    assert {name: picked.params[name] for name in PARAMS} == {**PARAMS, "micro_batch_size": 4}
    assert picked.objective.provenance["held_out_bytes"] == 512


def test_what_a_person_leaves_out_has_its_default_and_fp32_its_name(load):
    picked = load(("precision: 32-true\n", "precision: fp32\n"), ("  depth: 1\n", ""))
    assert picked.params["precision"] == "32-true"
    assert picked.params["depth"] == 2  # of LanguageModelParams


def test_an_editor_may_leave_its_mark_before_the_text(load):
    assert load(prefix=b"\xef\xbb\xbf").params["width"] == 32


def test_all_faults_of_params_and_data_come_at_once(load):
    with pytest.raises(FileFaultsError) as caught:
        load(
            ("  batch_size: 4\n", "  batch_sizee: 4\n"),
            ("  learning_rate: 0.001\n", "  learning_rate: true\n"),
            ("width: 32", "width: 33"),
            ("held_out_tokens:", "held_out_token:"),
        )
    assert [str(fault) for fault in caught.value.faults] == [
        "params.learning_rate: must be a number, found true",
        "params.width: 33 must be a multiple of twice heads (2)",
        "params.batch_sizee: 'batch_sizee' is not a known dimension (did you mean 'batch_size'?)",
        (
            "data.held_out_token: 'held_out_token' is not a known setting of LanguageModel"
            " (did you mean 'held_out_tokens'?)"
        ),
    ]


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (("precision: 32-true", "precision: fp8"), "params.precision: must be '32-true'"),
        (("  batch_size: 4", "  batch_size: 0"), "params.batch_size: must be above 0, found 0"),
        (("micro_batch_size: 4", "micro_batch_size: 3"), "params.micro_batch_size: 3 does not"),
        (
            ("micro_batch_size: 4", "micro_batch_size: auto"),
            "params.micro_batch_size: must be a number or equal",
        ),
        (("LanguageModel", "LanguagModel"), "objective: module 'objectives.language_model' has"),
        (("corpus.txt", "gone.txt"), "data.corpus: "),
        (("sequence_length: 16", "sequence_length: 99999"), "data.corpus: "),
    ],
)
def test_one_edit_is_one_fault_with_its_place(load, edit, fault):
    with pytest.raises(FileFaultsError) as caught:
        load(edit)
    (told,) = map(str, caught.value.faults)
    assert told.startswith(fault)


def export(tmp_path, params, **origin):
    options = {"sweep": "mine", "sweep_id": "id", "objective": "", "data": {}, "num_tokens": 0}
    more = {"budget_bytes": 2**30, "cpus": 1, "versions": {}, "metrics": (), **origin}
    pick = Pick(
        trial=Trial(number=0, params=params, outcome=Outcome.COMPLETED), reason="", conditions=()
    )
    text = export_yaml(pick, Origin(**{**options, **more}))
    (tmp_path / "pick.yaml").write_text(text)
    return tmp_path / "pick.yaml"


def test_a_command_is_not_trained_and_its_line_is_told(tmp_path):
    command = "python train.py --lr {lr} --note {note}"
    params = {"seed": 0, "lr": 0.1, "note": "a b", "micro_batch_size": "equal", "batch_size": 4}
    path = export(tmp_path, params, command=command, provenance={"command": command})
    assert "How to run it: paretune train" in path.read_text()
    assert "micro_batch_size: equal" in path.read_text()  # its own, whatever it means
    with pytest.raises(InputError, match=r"run it by\n  python train.py --lr 0.1 --note 'a b'$"):
        load_pick(path)


@pytest.mark.parametrize(
    ("note", "told"),
    [
        ("a b", 'python -c "from mine_picked import train; train({'),
        ("$x", "python -c 'from mine_picked"),
    ],
)
def test_a_function_is_not_trained_and_how_to_call_it_is_told(tmp_path, monkeypatch, note, told):
    (tmp_path / "mine_picked.py").write_text("def train(params, report): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = export(
        tmp_path,
        {"seed": 0, "note": note},
        objective="mine_picked:train",
        provenance={"function": "mine_picked:train"},
    )
    with pytest.raises(InputError) as caught:
        load_pick(path)
    assert "pick.yaml: mine_picked:train trains by itself" in str(caught.value)
    assert told in str(caught.value)


def test_an_objective_needs_its_tokens(load):
    with pytest.raises(FileFaultsError, match=r"trial\.tokens: must be at least 1"):
        load(("tokens: 1000", "tokens: 0"))
