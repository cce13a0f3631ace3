import sys

import pytest

from search.errors import InputError
from search.objective import load_objective, load_trainable

SOURCE = """\
class Model:
    metrics = ()
    parameters = dict
    provenance = {}

    def model(self, params): ...
    def batch(self, params, split): ...
    def data(self, params, split, *, seed, num_tokens=None): ...
    def num_tokens(self, batch): ...
    def tokens_per_sample(self, params): ...
    def loss(self, model, batch): ...
    def evaluate(self, model, batches): ...


class Half:
    metrics = ()

    def model(self, params): ...


def function(): ...
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


def _write(path, source=SOURCE):
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)


def _told(path):
    with pytest.raises(InputError) as caught:
        load_objective(path)
    return str(caught.value)


def test_a_module_of_the_working_folder_is_found(tmp_path):
    _write(tmp_path / "mine_here.py")
    assert load_objective("mine_here:Model").__name__ == "Model"


def test_a_module_of_a_package_is_found_by_its_dotted_path(tmp_path):
    _write(tmp_path / "mine_package" / "models.py")
    assert load_objective("mine_package.models:Model").__name__ == "Model"


def test_the_language_model_is_an_objective():
    loaded = load_objective("objectives.language_model:LanguageModel")
    assert loaded.__name__ == "LanguageModel"


def test_what_the_module_does_offer_is_told(tmp_path):
    _write(tmp_path / "mine_offers.py")
    assert _told("mine_offers:Modle") == (
        "module 'mine_offers' has no 'Modle' (did you mean 'Model'?); it offers Model"
    )
    assert _told("mine_offers:Zzz") == "module 'mine_offers' has no 'Zzz'; it offers Model"


def test_a_module_without_any_says_so(tmp_path):
    _write(tmp_path / "mine_empty.py", "x = 1\n")
    assert _told("mine_empty:Model").endswith("has no 'Model'; it offers no objective")


def test_what_an_object_lacks_to_be_an_objective_is_told(tmp_path):
    _write(tmp_path / "mine_half.py")
    assert _told("mine_half:Half") == (
        "'mine_half:Half' is no objective: it has no parameters, batch, data, evaluate, loss, "
        "num_tokens, tokens_per_sample"
    )
    assert _told("mine_half:function").startswith("'mine_half:function' is no objective")


def test_a_function_of_params_and_report_is_trainable_and_an_objective_still_is_one(tmp_path):
    source = f"{SOURCE}\n\ndef train(params, report, verbose=False): ...\ndef one(params): ...\n"
    _write(tmp_path / "mine_functions.py", source)
    assert load_trainable("mine_functions:train").__name__ == "train"
    assert load_trainable("mine_functions:Model") is load_objective("mine_functions:Model")
    with pytest.raises(InputError, match=r"nor is it a function of two, \(params, report\)"):
        load_trainable("mine_functions:one")


def test_a_module_that_is_not_there_is_told():
    hint = "(is it installed, or in the working folder?)"
    assert _told("mine_nowhere:Model") == f"there is no module 'mine_nowhere' {hint}"
    assert (
        _told("search.nowhere.at_all:Model") == f"there is no module 'search.nowhere.at_all' {hint}"
    )


@pytest.mark.parametrize(
    "path", ["", "name", "package.module", ":Name", "package.module:", ".x:Name", "a b:C", "a:b.c"]
)
def test_a_path_of_another_form_is_refused(path):
    assert _told(path) == f"{path!r} is not of the form 'package.module:Name'"


def test_what_a_module_itself_fails_to_import_is_not_hidden(tmp_path):
    _write(tmp_path / "mine_broken.py", "import not_installed_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_objective("mine_broken:Model")
