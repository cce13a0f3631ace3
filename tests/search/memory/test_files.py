from pathlib import Path

import pytest

from search.memory.files import cache_folder, read_json, write_json


def test_what_is_written_is_read(tmp_path):
    file = tmp_path / "a" / "b.json"
    write_json(file, {"x": 1})
    write_json(file, {"x": 2})
    assert read_json(file) == {"x": 2}
    assert [path.name for path in file.parent.iterdir()] == ["b.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"x": "\udc80"'])
def test_a_damaged_file_is_as_good_as_none(tmp_path, text):
    file = tmp_path / "x.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_json(file) == {}


def test_a_write_that_fails_leaves_the_earlier_file(tmp_path):
    file = tmp_path / "x.json"
    write_json(file, {"x": 1})
    with pytest.raises(TypeError):
        write_json(file, {"x": object()})
    assert read_json(file) == {"x": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_the_cache_is_where_the_user_wants_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "paretune"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache" / "paretune"
