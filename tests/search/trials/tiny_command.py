# ruff: noqa: T201 - it prints what it reports
"""A script whose arguments decide how it ends. It needs the standard library alone."""

import argparse
import json
import os
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=2)
parser.add_argument("--size", type=int, default=0)
parser.add_argument("--ending", default="completed")
options = parser.parse_args()

print("about to start")
print('{"not": "a report"}', "\n7\n{broken")
print("mind this", file=sys.stderr)
held = b"x" * (options.size * options.width * 2**20)
for step in range(3):
    print(json.dumps({"loss": 3 - step, "tokens": 100 * (step + 1), "name": "x", "ok": True}))
match options.ending:
    case "error":
        sys.exit("Traceback\nValueError: the user's own mistake")
    case "out_of_memory":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    case "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    case "nan":
        print('{"loss": NaN}')
        time.sleep(60)
    case "endless":
        print(json.dumps({"accuracy": 0.5, "pid": os.getpid()}))
        time.sleep(600)
    case "nothing":
        sys.exit(0)
print(json.dumps({"accuracy": 1 - 1 / options.width}))
