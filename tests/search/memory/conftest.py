import json
import subprocess
import sys
import textwrap

import pytest

_PREPARED = """
import json, torch
torch.set_num_threads(1)
from search.memory.device import device_here
from search.memory.measurement import *
device = device_here()
prepare_process()
"""


def _answer(code, *, prologue=_PREPARED):
    source = prologue + textwrap.dedent(code)
    command = [sys.executable, "-W", "ignore", "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def fresh():
    """Runs code in a process of its own, prepared for measuring: its last line, read as JSON."""
    return _answer
