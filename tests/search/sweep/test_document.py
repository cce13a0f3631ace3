# ruff: noqa: ISC004 - in a list of messages each spans as many lines as it needs
import pytest

from search.errors import FileFaultsError
from search.sweep.document import read_document


def _told(text: str) -> str:
    with pytest.raises(FileFaultsError) as caught:
        read_document(text, "x.yaml")
    return str(caught.value)


def test_it_is_yaml_1_2():
    text = "a: 1e-4\nb: no\nc: 60_000\nd: 010\ne: 2026-02-01\nf: true\ng: 1.5e3\nh: [1e6]"
    assert read_document(text, "x.yaml").data == {
        "a": 0.0001,
        "b": "no",
        "c": 60_000,
        "d": 10,
        "e": "2026-02-01",
        "f": True,
        "g": 1500.0,
        "h": [1_000_000.0],
    }


def test_a_section_with_nothing_in_it_is_left_out():
    assert read_document("a:\nb: {c: }", "x.yaml").data == {"b": {"c": None}}


def test_it_knows_the_line_of_every_place():
    document = read_document("a: 1\nb:\n  c: {d: 2,\n      e: 3}\n", "x.yaml")
    assert document.lines == {"a": 1, "b": 2, "b.c": 3, "b.c.d": 3, "b.c.e": 4}


def test_a_key_given_twice_is_a_fault_told_once_with_its_lines():
    document = read_document("a: {b: 1}\nc: {d: 1, d: 2}\na: {b: 2}\n", "x.yaml")
    assert [str(fault) for fault in document.repeated] == [
        "c.d: is given twice, in line 2 (leave one out)",
        "a: is given twice, in lines 1 and 3 (leave one out)",
    ]


def test_an_anchor_that_holds_itself_is_read():
    assert read_document("a: &x {b: *x}", "x.yaml").data["a"]["b"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "a: [1,\nb: 2",
            "line 2, column 5: this is not YAML: expected ',' or ']', but got '<stream end>'",
        ),
        (
            "a: b: c",
            "line 1, column 5: this is not YAML: mapping values are not allowed here",
        ),
        (
            "a: 1\n\tb: 2",
            "line 2, column 1: this is not YAML: found character '\\t' that cannot start any token",
        ),
        ("a: *b", "line 1, column 4: this is not YAML: found undefined alias 'b'"),
        ("a: 1\n---\nb: 2", "line 2, column 1: this is not YAML: but found another document"),
        (
            "a: !python/object 1",
            "line 1, column 4: this is not YAML: could not determine a constructor for the tag "
            "'!python/object'",
        ),
        (
            "a: \0",
            "this is not YAML: unacceptable character #x0000: special characters are not allowed",
        ),
        ("", "the file is empty ('paretune init' writes one to start from)"),
        ("# only this\n", "the file is empty ('paretune init' writes one to start from)"),
        (
            "- a\n- b",
            "the file must be a mapping of fields to values, such as `name: quickstart`",
        ),
    ],
)
def test_what_is_no_sweep_at_all_is_one_fault(text, told):
    assert _told(text) == f"x.yaml: 1 fault\n  {told}"
