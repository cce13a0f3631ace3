import json

import pytest

from search import home
from search.errors import InputError, MachineError
from search.metric import PEAK_MEMORY, Goal, Metric

LOSS = Metric(name="bits_per_byte", goal=Goal.MIN)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PARETUNE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def manifest():
    return home.Manifest(
        sweep_id=home.new_sweep_id(),
        created_at=home.now(),
        tracking_uri="sqlite:////tmp/mlflow.db",
        objective="package.module:Name",
        data={"corpus": "text.txt"},
        dimensions=("learning_rate",),
        objectives=(LOSS, PEAK_MEMORY),
        metrics=(LOSS, PEAK_MEMORY),
        num_trials=3,
        num_tokens=1000,
        budget_bytes=2**20,
        cpus=1,
        versions=home.installed_versions(),
        provenance={"sha256": "0"},
    )


def test_a_manifest_is_read_back_as_it_was_written():
    written = manifest()
    created = home.create_home("lm", sweep_text="name: lm\n", manifest=written)
    assert home.open_home("lm").manifest() == written
    assert created.sweep_file.read_text() == "name: lm\n"
    assert home.names() == ["lm"]


def test_a_name_is_taken_once():
    home.create_home("lm", sweep_text="", manifest=manifest())
    with pytest.raises(InputError, match="--resume lm"):
        home.create_home("lm", sweep_text="", manifest=manifest())


def test_an_unknown_sweep_names_those_there_are():
    home.create_home("lm", sweep_text="", manifest=manifest())
    with pytest.raises(InputError, match=r"no sweep called 'ml'.*there are: lm"):
        home.open_home("ml")


def test_a_folder_left_half_made_is_no_sweep(folder):
    (folder / "lm").mkdir(parents=True)
    (folder / "lm" / "sweep.yaml").touch()
    assert home.names() == []
    home.create_home("lm", sweep_text="", manifest=manifest())
    assert home.names() == ["lm"]


def test_a_damaged_manifest_is_told():
    created = home.create_home("lm", sweep_text="", manifest=manifest())
    created.manifest_file.write_text(json.dumps({"sweep_id": "1"}))
    with pytest.raises(InputError, match="holds no sweep that this version can read"):
        created.manifest()


def test_a_folder_that_cannot_be_written_is_the_machines_fault(folder):
    folder.write_text("a file where the folder should be")
    with pytest.raises(MachineError, match="PARETUNE_HOME"):
        home.create_home("lm", sweep_text="", manifest=manifest())


def test_picks_are_kept_by_label():
    sweep = home.create_home("lm", sweep_text="", manifest=manifest())
    with pytest.raises(InputError, match="nothing was picked yet"):
        sweep.load_pick("latest")
    sweep.save_pick("latest", {"trial": 1})
    sweep.save_pick("latest", {"trial": 2})
    sweep.save_pick("small", {"trial": 3})
    assert sweep.load_pick("latest") == {"trial": 2}
    with pytest.raises(InputError, match=r"'large' \(there are: latest, small\)"):
        sweep.load_pick("large")


@pytest.mark.parametrize("label", ["", "../x", "a/b", ".hidden"])
def test_a_label_never_leaves_its_folder(label):
    sweep = home.create_home("lm", sweep_text="", manifest=manifest())
    with pytest.raises(InputError, match="--as"):
        sweep.save_pick(label, {})


def test_a_folder_that_cannot_hold_a_file_is_said(tmp_path, folder):
    with pytest.raises(InputError, match="No such file or directory"):
        home.write_for_user(tmp_path / "missing" / "pick.yaml", "")
    with pytest.raises(InputError, match="Is a directory"):
        home.write_for_user(tmp_path, "")
    created = home.create_home("lm", sweep_text="", manifest=manifest())
    (folder / "lm" / "picks").touch()
    with pytest.raises(MachineError, match="lm cannot be written: File exists"):
        created.save_pick("latest", {})


def test_a_label_is_short_enough_for_a_file_name():
    assert home.require_label("a" * 100) == "a" * 100
    with pytest.raises(InputError, match="at most 100 letters"):
        home.require_label("a" * 101)


def test_a_discarded_sweep_leaves_its_name():
    created = home.create_home("lm", sweep_text="", manifest=manifest())
    created.discard()
    assert home.names() == []
    home.refuse_existing("lm")
