import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from search.memory.residuals import (
    SCALES,
    ErrorScale,
    Residual,
    ResidualStore,
    Setting,
    known_settings,
)
from search.units import GIB, MIB

A100 = Setting(device="NVIDIA A100", kind="cuda", driver="550.54", torch_version="2.13.0")
FIRST = Residual(predicted_bytes=GIB, measured_bytes=GIB + MIB)
SECOND = Residual(predicted_bytes=2 * GIB, measured_bytes=3 * GIB, censored=True)

_WRITER = """
import sys
from pathlib import Path
from search.memory.residuals import *
setting = Setting(device="NVIDIA A100", kind="cuda", driver="550.54", torch_version="2.13.0")
store = ResidualStore(setting, Path(sys.argv[1]))
sys.stdin.readline()
for number in range(200):
    residual = Residual(predicted_bytes=number, measured_bytes=int(sys.argv[2]))
    store.add(residual, trial=f"{sys.argv[2]}/{number}")
"""


def test_an_error_is_measured_in_ordinary_errors_of_its_size():
    scale = ErrorScale(constant_bytes=50, share=0.01)
    # 50 + 1 % of 5,000 is 100; 30 too much is 0.3 of it
    assert scale.at(5_000) == 100
    assert scale.score(Residual(predicted_bytes=5_000, measured_bytes=4_970)) == -0.3


def test_60_mib_are_much_at_2_gib_and_little_at_40():
    small, large = (
        SCALES["cuda"].score(Residual(predicted_bytes=size, measured_bytes=size + 60 * MIB))
        for size in (2 * GIB, 40 * GIB)
    )
    # an ordinary error is 84.48 MiB at 2 GiB, 473.6 MiB at 40 GiB
    assert (small, large) == pytest.approx((0.7102, 0.1267), rel=1e-3)


class TestStore:
    def test_keeps_what_it_is_given_in_order(self, tmp_path):
        store = ResidualStore(A100, tmp_path)
        assert store.read() == ()
        store.add(FIRST, trial="a/0")
        store.add(SECOND, trial="a/1")
        assert ResidualStore(A100, tmp_path).read() == (FIRST, SECOND)

    def test_a_trial_counts_once(self, tmp_path):
        store = ResidualStore(A100, tmp_path)
        for residual in (FIRST, SECOND):
            store.add(residual, trial="a/0")
        assert store.read() == (FIRST,)

    @pytest.mark.parametrize(
        "other",
        [
            {"device": "NVIDIA H100"},
            {"kind": "cpu"},
            {"driver": "551"},
            {"torch_version": "2.14.0"},
            {"statistic": "reserved"},
        ],
    )
    def test_settings_do_not_mix(self, tmp_path, other):
        ResidualStore(A100, tmp_path).add(FIRST, trial="a/0")
        assert ResidualStore(replace(A100, **other), tmp_path).read() == ()

    def test_tells_of_what_it_keeps(self, tmp_path):
        assert known_settings(tmp_path) == ()
        settings = (A100, replace(A100, device="NVIDIA H100"))
        for setting in reversed(settings):
            ResidualStore(setting, tmp_path).add(FIRST, trial="a/0")
        (tmp_path / "damaged").mkdir()
        (tmp_path / "damaged" / "setting.json").write_text("{")
        assert known_settings(tmp_path) == settings

    @pytest.mark.parametrize(
        "line",
        [
            '{"trial": "a/1", "predicted_by',
            "[]",
            '{"trial": "a/1"}',
            '{"trial": "a/1", "predicted_bytes": "1", "measured_bytes": 1}',
            '{"trial": "a/1", "predicted_bytes": -1, "measured_bytes": 1}',
            '{"trial": 7, "predicted_bytes": 1, "measured_bytes": 1}',
            '{"predicted_bytes": 1, "measured_bytes": 1}',
        ],
    )
    def test_passes_over_what_is_damaged(self, tmp_path, line):
        store = ResidualStore(A100, tmp_path)
        store.add(FIRST, trial="a/0")
        with store.file.open("a") as stream:
            stream.write(line)
        store.add(SECOND, trial="a/2")
        assert store.read() == (FIRST, SECOND)

    def test_is_in_the_users_cache_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        ResidualStore(A100).add(FIRST, trial="a/0")
        assert ResidualStore(A100, tmp_path / "paretune" / "calibration").read() == (FIRST,)
        assert known_settings() == (A100,)

    def test_two_processes_lose_nothing(self, tmp_path):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(_WRITER), str(tmp_path), name],
                stdin=subprocess.PIPE,
                text=True,
            )
            for name in ("1", "2")
        ]
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for writer in writers:
            writer.communicate()
            assert writer.returncode == 0
        kept = ResidualStore(A100, tmp_path).read()
        for name in (1, 2):
            own = [each.predicted_bytes for each in kept if each.measured_bytes == name]
            assert own == list(range(200))
