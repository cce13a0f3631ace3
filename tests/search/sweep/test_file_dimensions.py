"""Faults of a sweep file's dimensions: their names, forms and values."""
# ruff: noqa: ISC004 - in a list of messages each spans as many lines as it needs

import pytest
from toy_words import A_DIMENSION, KNOWN_TO_TOY, PRECISIONS


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        # names of dimensions
        (
            {"space": "{sequnce_length: [8, 16]}"},
            "space.sequnce_length: 'sequnce_length' is not a known dimension "
            "(did you mean 'sequence_length'?)",
        ),
        (
            {"space": "{compile: [true, false]}"},
            "space.compile: is no dimension: no trial is compiled, since the memory of what "
            "torch.compile makes cannot be predicted (leave it out, and compile what is picked)",
        ),
        (
            {"fixed": "{zzz: 1}"},
            f"fixed.zzz: 'zzz' is not a known dimension (known: {KNOWN_TO_TOY})",
        ),
        (
            {"fixed": "{width: 8}"},
            "fixed.width: is searched in 'space' too (leave it out of one of the two)",
        ),
        # forms of dimensions
        ({"space": "{}"}, "space: must name at least one dimension to search"),
        ({"space": "{width: 8}"}, f"space.width: {A_DIMENSION}"),
        ({"space": "{width: []}"}, "space.width: must list at least one choice"),
        (
            {"space": "{width: {low: 16, high: 8}}"},
            "space.width.high: must be above low, 16, found 8 (swap the two)",
        ),
        (
            {"space": "{width: {low: 8, high: 8}}"},
            "space.width.high: must be above low, 8, found 8 "
            "(a single value belongs under 'fixed')",
        ),
        (
            {"space": "{learning_rate: {low: 0, high: 0.1, log: true}}"},
            "space.learning_rate.low: must be above 0 on a log scale, found 0 (try 1e-5)",
        ),
        (
            {"space": "{width: {low: 0, high: 16, log: true}}"},
            "space.width.low: must be above 0 on a log scale, found 0 (try 1)",
        ),
        (
            {"space": "{width: {low: 8, high: 16, step: 32}}"},
            "space.width.step: must be at most high - low, 8, found 32",
        ),
        (
            {"space": "{dropout: {low: 0, high: 0.5, step: 0}}"},
            "space.dropout.step: must be above 0, found 0",
        ),
        (
            {"space": "{width: {low: 8, high: 16, step: 2, log: true}}"},
            "space.width.step: does not go with log (leave one of them out)",
        ),
        (
            {"space": "{dropout: {low: 0.0, high: .inf}}"},
            "space.dropout.high: must be a finite number, found inf",
        ),
        (
            {"space": "{dropout: {low: x, high: 0.5}}"},
            "space.dropout.low: must be a number, found 'x'",
        ),
        ({"space": "{width: [8, 8]}"}, "space.width: 8 is listed twice (leave one out)"),
        (
            {"space": "{dropout: [0, 0.0]}"},
            "space.dropout: 0 is listed twice (leave one out)",
        ),
        (
            {"space": "{precision: [fp32, 32-true]}"},
            "space.precision: 'fp32' and '32-true' are the same choice (leave one out)",
        ),
        (
            {"space": "{dropout: [0.1, .nan]}"},
            "space.dropout.1: must be a finite number, found nan",
        ),
        ({"space": "{width: [[8], 16]}"}, "space.width.0: must be one value, found a list"),
        # values of dimensions
        ({"space": "{width: [8, 8.5]}"}, "space.width: must be a whole number, found 8.5"),
        ({"space": "{width: [8, wide]}"}, "space.width: must be a whole number, found 'wide'"),
        ({"space": "{width: [8, true]}"}, "space.width: must be a whole number, found true"),
        ({"space": "{width: [8, null]}"}, "space.width: must be a whole number, found nothing"),
        (
            {"space": "{width: {low: 8.5, high: 16}}"},
            "space.width.low: must be a whole number, found 8.5",
        ),
        ({"fixed": "{dropout: '0.1'}"}, "fixed.dropout: must be a number, found '0.1'"),
        ({"fixed": "{tied: 1}"}, "fixed.tied: must be true or false, found 1"),
        (
            {"space": "{activation: {low: 1, high: 2}}"},
            "space.activation: must be 'relu' or 'gelu', found a mapping "
            "(list the choices, such as [...])",
        ),
        (
            {"space": "{precision: [bf17-mixed, tf32]}"},
            f"space.precision: must be {PRECISIONS}, found 'bf17-mixed' "
            "(did you mean 'bf16-mixed'?)",
        ),
        (
            {"fixed": "{micro_batch_size: equel}"},
            "fixed.micro_batch_size: must be a whole number, 'equal' or 'auto', found 'equel' "
            "(did you mean 'equal'?)",
        ),
        # what the dataclasses refuse
        (
            {"space": "{learning_rate: [0, 0.1]}"},
            "space.learning_rate: must be above 0, found 0",
        ),
        (
            {"space": "{weight_decay: {low: -1, high: 1}}"},
            "space.weight_decay.low: must not be negative, found -1",
        ),
        (
            {"space": "{dropout: {low: 0, high: 1.5}}"},
            "space.dropout.high: must be from 0 to below 1, found 1.5",
        ),
        ({"fixed": "{dropout: 1.5}"}, "fixed.dropout: must be from 0 to below 1, found 1.5"),
        (
            {"space": "{width: [8, 9]}"},
            "space.width: 9 must be a multiple of heads (2)",
        ),
        (
            {"space": "{width: [8, 12]}", "fixed": "{heads: 8}"},
            "space.width: 12 must be a multiple of heads (8)",
        ),
        (
            {"space": "{width: [8, 12], heads: [2, 8]}"},
            "space: width 12 must be a multiple of heads (8), for example at width 12, heads 8; "
            "1 of 4 combinations tried are refused "
            "(leave out the values that do not go together)",
        ),
        (
            {"space": "{batch_size: [8, 16], micro_batch_size: [4, 16]}"},
            "space: micro_batch_size 16 does not divide batch_size 8, for example at "
            "batch_size 8, micro_batch_size 16; 1 of 4 combinations tried are refused "
            "(leave out the values that do not go together)",
        ),
        (
            {"fixed": "{heads: 12}", "space": "{width: {low: 12, high: 60}}"},
            "space.width: 13 must be a multiple of heads (12)",
        ),
    ],
)
def test_one_fault(faults, fields, told):
    assert faults(**fields) == [told]


def test_a_range_is_told_by_its_ends_not_by_all_between(faults):
    told = faults(space="{width: {low: 9, high: 4001}}", fixed="{heads: 8}")
    assert told == [
        "space.width.low: 9 must be a multiple of heads (8)",
        "space.width.high: 4001 must be a multiple of heads (8)",
    ]


def test_each_bad_choice_is_told(faults):
    assert faults(space="{batch_size: [0, 8, -1, 2.5, x]}") == [
        "space.batch_size: must be a whole number, found 2.5",
        "space.batch_size: must be a whole number, found 'x'",
        "space.batch_size: must be above 0, found 0",
        "space.batch_size: must be above 0, found -1",
    ]


def test_more_combinations_than_can_be_tried_are_drawn_from(faults):
    many = "[{}]".format(", ".join(str(8 * index) for index in range(1, 60)))
    told = faults(space=f"{{width: {many}, heads: [1, 2, 4, 8, 16], sequence_length: {many}}}")
    assert len(told) == 1
    assert told[0].startswith("space: width ")
    assert " of 2000 combinations tried are refused" in told[0]
