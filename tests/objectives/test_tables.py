import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from objectives.tables import read_table
from search.errors import InputError

COLUMNS = {"text": ["one, two", 'say "three"', "four"], "label": ["a", "b", "a"]}


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(path: Path, *rows) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


class TestReading:
    def test_every_format_gives_the_same_columns(self, tmp_path):
        write(tmp_path / "a.csv", 'text,label\n"one, two",a\n"say ""three""",b\nfour,a\n')
        write(tmp_path / "a.tsv", 'text\tlabel\none, two\ta\n"say ""three"""\tb\nfour\ta\n')
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
        jsonl(tmp_path / "a.jsonl", *rows)
        parquet.write_table(pa.table(COLUMNS), tmp_path / "a.parquet")
        for file in sorted(tmp_path.iterdir()):
            table = read_table(file, ("text", "label"))
            assert table.texts("text") == COLUMNS["text"], file
            assert table.labels("label") == COLUMNS["label"], file

    def test_columns_nobody_asked_for_are_left_out(self, tmp_path):
        table = read_table(write(tmp_path / "a.csv", "id,text\n1,one\n"), ("text",))
        assert dict(table.columns) == {"text": ("one",)}

    def test_a_mark_of_byte_order_is_no_part_of_a_name(self, tmp_path):
        assert read_table(write(tmp_path / "a.csv", b"\xef\xbb\xbftext\none\n"), ("text",))

    def test_blank_lines_between_objects_are_no_rows(self, tmp_path):
        table = read_table(write(tmp_path / "a.jsonl", '{"n": 1}\n\n{"n": 2}\n'), ("n",))
        assert (table.numbers("n"), table.rows) == ([1.0, 2.0], (1, 3))


class TestCells:
    def test_labels_are_words_and_whole_numbers(self, tmp_path):
        file = jsonl(tmp_path / "a.jsonl", {"x": 3}, {"x": True}, {"x": "no"})
        assert read_table(file, ("x",)).labels("x") == ["3", "True", "no"]

    def test_numbers_are_numbers_or_their_text(self, tmp_path):
        assert read_table(jsonl(tmp_path / "a.jsonl", {"x": 3}, {"x": "-1e3"}), ("x",)).numbers(
            "x"
        ) == [3.0, -1000.0]

    @pytest.mark.parametrize(
        ("kind", "cell", "message"),
        [
            ("texts", None, "must be text, found nothing"),
            ("texts", " ", "must be text, found ' '"),
            ("texts", 5, "must be text, found 5"),
            ("labels", 0.5, "must be a word or a whole number, found 0.5"),
            ("labels", [1], r"must be a word or a whole number, found \[1\]"),
            ("numbers", "high", "must be a number, found 'high'"),
            ("numbers", True, "must be a number, found True"),
            ("numbers", "nan", "must be a number, found 'nan'"),
        ],
    )
    def test_a_fault_names_file_row_column_and_mend(self, tmp_path, kind, cell, message):
        good = {"texts": "one", "labels": "a", "numbers": 1}[kind]
        table = read_table(jsonl(tmp_path / "a.jsonl", {"x": good}, {"x": cell}), ("x",))
        where = r"a\.jsonl: row 2, column 'x': "
        with pytest.raises(InputError, match=f"{where}{message} .*leave the row out"):
            getattr(table, kind)("x")

    def test_a_row_of_a_text_file_is_the_line_it_ends_on(self, tmp_path):
        file = write(tmp_path / "a.csv", 'text,x\n"two\nlines",1\nshort\n')
        table = read_table(file, ("text", "x"))
        assert table.rows == (3, 4)
        with pytest.raises(InputError, match="row 4, column 'x': must be a number, found nothing"):
            table.numbers("x")


class TestRefusal:
    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.txt", "text\none\n", r"must be named \.csv, .*found 'a\.txt'"),
            ("a.csv", "", "has no column 'text' .it has none"),
            ("a.csv", "text\n", "has no rows"),
            ("a.csv", "txt,n\none,1\n", "has no column 'text' .it has 'txt', 'n': name one"),
            ("a.csv", b"text\n\xff\n", "is not text: byte 5 is not UTF-8"),
            ("a.csv", 'text\n"one"two\n', "line 2: .*expected after"),
            ("a.jsonl", "", "has no rows"),
            ("a.jsonl", '{"txt": 1}\n', "has no column 'text' .it has 'txt'"),
            ("a.jsonl", '{"text": "one"}\n{"text"\n', "row 2: this is not JSON"),
            ("a.jsonl", '"one"\n', "row 1: must be an object"),
            ("a.parquet", "text", "is no Parquet file"),
        ],
    )
    def test_names_the_file_and_the_mend(self, tmp_path, name, content, message):
        file = write(tmp_path / name, content)
        with pytest.raises(InputError, match=f"{name}: {message}"):
            read_table(file, ("text",))

    @pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
    def test_a_file_that_is_not_there(self, tmp_path, name):
        with pytest.raises(InputError, match=f"{name}: there is no such file"):
            read_table(tmp_path / name, ("text",))

    def test_a_column_that_a_parquet_file_has_not(self, tmp_path):
        parquet.write_table(pa.table({"txt": ["one"]}), tmp_path / "a.parquet")
        with pytest.raises(InputError, match=r"has no column 'text' .it has 'txt'"):
            read_table(tmp_path / "a.parquet", ("text",))

    def test_a_folder(self, tmp_path):
        (tmp_path / "a.csv").mkdir()
        with pytest.raises(InputError, match=r"a\.csv: cannot be read"):
            read_table(tmp_path / "a.csv", ("text",))


def test_a_text_may_be_as_long_as_it_is(tmp_path):
    text = "word " * 50_000
    table = read_table(write(tmp_path / "long.csv", f"text,label\n{text},a\n"), ("text", "label"))
    assert table.texts("text") == [text]
