import pytest
from tiny_folder import BERT, SMALL, write

from objectives.huggingface import SequenceClassifier
from search.objective import Split

pytestmark = pytest.mark.usefixtures("one_thread_and_no_network")


def test_a_text_begins_with_its_mark_and_keeps_it_when_cut(classifiers, tmp_path):
    batch = next(classifiers["bert"].data(SMALL, Split.TRAIN, seed=0))
    assert (batch["tokens"][:, 0] == 1).all()
    write(tmp_path, BERT, "AutoModelForSequenceClassification")
    cut = SequenceClassifier(model=str(tmp_path), held_out_samples=80)
    tokens = next(cut.data({**SMALL, "sequence_length": 6}, Split.TRAIN, seed=0))["tokens"]
    assert (tokens[0, 0], tokens[0, -1], tokens.shape[1]) == (0, 1, 6)
