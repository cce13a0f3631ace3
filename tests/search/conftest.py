import json
import os
import subprocess
import sys
import textwrap

import pytest

_JOINED = """
import json, os, sys, torch
from torch import distributed
torch.set_num_threads(1)
from search.memory.measurement import *
if os.environ.get("PREPARED"):
    prepare_process()
rank = int(sys.argv[1])
distributed.init_process_group(
    "gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=int(sys.argv[3])
)
"""


@pytest.fixture(scope="session")
def joined(tmp_path_factory):
    """Runs code in processes that are joined by gloo: the last line of each, read as JSON."""

    def answers(code, *, world_size=2, prepared=False):
        source = _JOINED + textwrap.dedent(code) + "\ndistributed.destroy_process_group()\n"
        store = tmp_path_factory.mktemp("joined") / "store"
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PREPARED": "1" * prepared}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", source, str(rank), store, str(world_size)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(world_size)
        ]
        outputs = [rank.communicate() for rank in ranks]
        assert all(rank.returncode == 0 for rank in ranks), [errors for _, errors in outputs]
        return [json.loads(printed.splitlines()[-1]) for printed, _ in outputs]

    return answers
