from search.sweep.file import parse_sweep
from search.sweep.starter import STARTER
from search.sweep.sweep import Sweep


def test_the_starter_is_a_sweep_that_can_run():
    loaded = parse_sweep(STARTER, path="starter", capacity_bytes=24 * 1024**3)
    assert len(loaded.sweep.space) == 3


def test_what_it_comments_out_is_right_as_well():
    lines = [_uncommented(line) for line in STARTER.splitlines()]
    loaded = parse_sweep("\n".join(lines), path="starter", capacity_bytes=24 * 1024**3)
    assert loaded.sweep.trial.time_limit == 600
    assert loaded.sweep.resources.concurrent == 2
    assert "precision" in loaded.sweep.space


def test_it_names_every_field():
    for name in Sweep.model_fields.keys() - {"command"}:  # which takes the place of objective
        assert f"\n{name}:" in STARTER or f"\n# {name}:" in STARTER, name


def _uncommented(line: str) -> str:
    """A line of the starter, its setting brought in where it is one that is commented out."""
    bare = line.lstrip()
    setting = bare.removeprefix("# ")
    is_setting = setting.split(":")[0].strip().isidentifier() and ": " in f"{setting} "
    return line.replace("# ", "", 1) if bare.startswith("# ") and is_setting else line
