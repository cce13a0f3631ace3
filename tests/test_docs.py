"""What the README and the guide name exists: commands, their options, make targets, pages."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from search.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = get_command(app).commands


def shell_lines(page: Path) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def lines_of(program: str) -> list[str]:
    found = [line for page in PAGES for line in shell_lines(page)]
    return sorted({line for line in found if Path(line.split()[0]).name == program})


@pytest.mark.parametrize("line", lines_of("paretune"))
def test_a_command_line_shown_is_understood(line):
    _, name, *arguments = shlex.split(line.partition(" > ")[0], comments=True)
    assert COMMANDS[name].make_context(name, arguments).command is COMMANDS[name]


@pytest.mark.parametrize("line", lines_of("make"))
def test_a_make_target_shown_exists(line):
    target = shlex.split(line, comments=True)[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def named_tests() -> list[str]:
    found = [re.findall(r"`([\w/]+\.py::\w+)`", page.read_text(encoding="utf-8")) for page in PAGES]
    return sorted({name for names in found for name in names})


@pytest.mark.parametrize("name", named_tests())
def test_a_test_named_exists(name):
    file, _, wanted = name.partition("::")
    text = (ROOT / "tests" / "search" / file).read_text(encoding="utf-8")
    assert re.search(rf"^(def|class) {wanted}\b", text, re.MULTILINE)
