# ruff: noqa: ISC004 - in a list of messages each spans as many lines as it needs
import pytest

from search.sweep.command import arguments, command_faults

PARAMS = {"lr": 0.001, "width": 64, "tied": True, "note": "it's a b; $(rm x)", "none": None}


def faults_of(command, searched=(), known=("lr", "width")):
    return [str(fault) for fault in command_faults(command, searched=searched, known=known)]


def test_values_take_their_places():
    assert arguments("python train.py --lr {lr} --width={width}", PARAMS) == [
        "python",
        "train.py",
        "--lr",
        "0.001",
        "--width=64",
    ]


def test_a_value_stays_one_argument_whatever_is_in_it():
    assert arguments("echo {note} 'a {note}'", PARAMS) == [
        "echo",
        "it's a b; $(rm x)",
        "a it's a b; $(rm x)",
    ]


def test_values_are_written_as_in_the_sweep_file():
    assert arguments("echo {tied} {none}", PARAMS) == ["echo", "true", "null"]


def test_double_braces_are_braces():
    assert arguments("echo {{lr}} '{{\"lr\": {lr}}}'", PARAMS) == ["echo", "{lr}", '{"lr": 0.001}']


@pytest.mark.parametrize("start", ["sh -c", "/bin/bash -ec", "bash -e -c"])
def test_in_the_script_of_a_shell_values_are_quoted(start):
    *_, script = arguments(f"{start} 'echo {{note}} | tee {{lr}}.log'", PARAMS)
    assert script == """echo 'it'"'"'s a b; $(rm x)' | tee 0.001.log"""


def test_only_a_shell_has_a_script():
    assert arguments("python -c {note}", PARAMS)[-1] == PARAMS["note"]
    assert arguments("sh -c 'train \"$1\"' train {note}", PARAMS)[-1] == PARAMS["note"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("echo {wdith}", "command: 'wdith' is not a known dimension (did you mean 'width'?)"),
        ("echo {}", "command: '{}' is not a known dimension (known: lr, width)"),
        (
            "echo {lr:.3f}",
            "command: cannot be read: {lr} must be a name alone, without ':' or '!' "
            "(write {{ and }} for braces that are no place)",
        ),
        (
            "echo {lr",
            "command: cannot be read: expected '}' before end of string "
            "(write {{ and }} for braces that are no place)",
        ),
        ("echo 'lr", "command: cannot be read: no closing quotation (close it)"),
        ("", "command: is empty (such as `python train.py`)"),
        (
            "no-such-program --lr",
            "command: there is no program 'no-such-program' (is it installed? else give its path)",
        ),
    ],
)
def test_what_cannot_be_run_is_told_with_its_mend(command, told):
    assert faults_of(command) == [told]


def test_a_searched_dimension_must_be_used():
    assert faults_of("echo {lr}", searched=("lr", "width")) == [
        "space.width: is not in the command, so it would change nothing (write {width} there)"
    ]
    assert faults_of("echo {lr}", searched=("lr",)) == []
