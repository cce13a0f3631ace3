import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.texts import Texts


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_gives_back_each_text(texts):
    held = Texts.of(texts)
    assert [text.tobytes() for text in held] == texts
    assert held.lengths.tolist() == list(map(len, texts))
    assert len(held) == len(texts)


def test_one_text_is_the_whole_array():
    assert [text.tolist() for text in Texts.one(np.arange(3))] == [[0, 1, 2]]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_what_is_saved_is_loaded_without_being_read(tmp_path, dtype):
    texts = Texts(values=np.arange(6, dtype=dtype), ends=np.array([2, 2, 6]))
    texts.save(tmp_path, "some")
    loaded = Texts.load(tmp_path, "some")
    assert isinstance(loaded.values, np.memmap)
    assert loaded.values.dtype == dtype
    assert [text.tolist() for text in loaded] == [[0, 1], [], [2, 3, 4, 5]]
