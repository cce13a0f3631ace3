import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.errors import InputError
from search.units import (
    format_bytes,
    format_seconds,
    format_value,
    parse_bytes,
    parse_quantity,
    parse_seconds,
    parse_value,
)


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        ("20 GiB", (20.0, "gib")),
        ("20GiB", (20.0, "gib")),
        ("  8000 ", (8000.0, "")),
        ("60_000", (60_000.0, "")),
        ("-1.5 s", (-1.5, "s")),
        (".5h", (0.5, "h")),
        ("1e3 tokens", (1000.0, "tokens")),
        ("+2", (2.0, "")),
        ("10 %", (10.0, "%")),
    ],
)
def test_a_quantity_is_a_number_and_its_unit_in_lower_case(text, quantity):
    assert parse_quantity(text) == quantity


@pytest.mark.parametrize("text", ["", "GiB", "1.2.3", "8 GiB of it", "one", "0x10", "1 2"])
def test_what_is_no_quantity_is_refused_with_an_example(text):
    with pytest.raises(InputError, match="is not a number with a unit") as caught:
        parse_quantity(text)
    assert "try '20 GiB'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("160 MiB", 160 * 2**20),
        ("24 GB", 24_000_000_000),
        ("1.5 kib", 1536),
        ("1 kB", 1000),
        ("2 TiB", 2 * 2**40),
        ("7 B", 7),
        ("7", 7),
        (7, 7),
    ],
)
def test_bytes(text, num_bytes):
    assert parse_bytes(text) == num_bytes
    assert type(parse_bytes(text)) is int


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90 s", 90),
        ("10 min", 600),
        ("2 h", 7200),
        ("250 ms", 0.25),
        ("1 µs", 1e-6),
        ("3", 3),
        (1.5, 1.5),
    ],
)
def test_seconds(text, seconds):
    assert parse_seconds(text) == seconds


def test_an_unknown_unit_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"'gigs' is not a unit of memory \(known: B, KiB, MiB,"):
        parse_bytes("8 gigs")
    with pytest.raises(
        InputError, match=r"'days' is not a unit of time \(known: µs, ms, s, min, h\)"
    ):
        parse_seconds("2 days")


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("20 GiB", "B", 20 * 2**30),
        ("2 min", "s", 120),
        ("8k", "tokens/s", 8000),
        ("8000 tokens/s", "tokens/s", 8000),
        ("8000", "tokens/s", 8000),
        ("1.5", "", 1.5),
        ("90 %", "", 0.9),
        ("2 M", "", 2_000_000),
    ],
)
def test_a_value_is_read_in_the_base_unit_of_its_metric(text, unit, value):
    assert parse_value(text, unit) == pytest.approx(value, rel=1e-12)


def test_a_value_in_a_unit_of_something_else_is_refused():
    with pytest.raises(InputError, match="'gib' is not a unit that fits tokens/s"):
        parse_value("8 GiB", "tokens/s")
    with pytest.raises(InputError, match="'s' is not a unit that fits a plain number"):
        parse_value("8 s", "")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (160 * 2**20, "160 MiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (-2 * 2**30, "-2 GiB"),
        (23.4567 * 2**30, "23.46 GiB"),
    ],
)
def test_sizes_on_the_screen(num_bytes, text):
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (48.4, "48 s"),
        (59.7, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_spans_on_the_screen(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2**30, "B", "1 GiB"),
        (61, "s", "1 min 01 s"),
        (1.25, "s", "1.25 s"),
        (0.0034171, "s", "3.417 ms"),
        (0.00025, "s", "250 µs"),
        (12_345.6, "tokens/s", "12,346 tokens/s"),
        (2.34567, "", "2.346"),
        (999.9, "", "999.9"),
    ],
)
def test_values_on_the_screen(value, unit, text):
    assert format_value(value, unit) == text


@given(st.integers(0, 2**50))
def test_a_size_on_the_screen_is_read_back_within_its_four_figures(num_bytes):
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=6e-4)


@given(st.integers(0, 10**9))
def test_a_plain_number_of_bytes_is_itself(num_bytes):
    assert parse_bytes(str(num_bytes)) == parse_bytes(f"{num_bytes} B") == num_bytes
