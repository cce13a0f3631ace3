import resource
from pathlib import Path

import pytest

from search.memory.files import (
    append_json,
    cache_folder,
    read_json,
    read_json_lines,
    write_json,
)


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


def test_lines_are_read_in_order(tmp_path):
    file = tmp_path / "a" / "b.jsonl"
    assert list(read_json_lines(file)) == []
    for number in range(3):
        append_json(file, {"x": number})
    assert [record["x"] for record in read_json_lines(file)] == [0, 1, 2]


def test_a_line_cut_short_spoils_no_other(tmp_path):
    file = tmp_path / "b.jsonl"
    file.write_bytes(b'{"x": 0}\n{"x": "\xc3')
    append_json(file, {"x": 1})
    append_json(file, {"x": 2})
    assert [record["x"] for record in read_json_lines(file)] == [0, 1, 2]


def test_of_a_line_that_does_not_fit_nothing_stays(tmp_path):
    file = tmp_path / "b.jsonl"
    append_json(file, {"x": 0})
    before = file.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            append_json(file, {"x": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before
