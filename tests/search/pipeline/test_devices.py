import json

import pytest

from search import cli
from search.errors import InputError
from search.memory import context_measurement
from search.memory.contexts import MeasuredContext, record_context
from search.memory.nvml import GpuHere
from search.pipeline import devices as listing

GIB, MIB = 2**30, 2**20
HERE = GpuHere(
    name="NVIDIA H100 80GB HBM3",
    uuid="GPU-1",
    architecture=(9, 0),
    total_bytes=80 * GIB,
    held_bytes=2 * GIB,
    driver="580.65.06",
)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(listing, "gpus_here", lambda: ())


def listed(capsys, name_part="", *, memory=None, as_json=False):
    listing.devices(name_part, memory=memory, as_json=as_json)
    return capsys.readouterr().out


def test_a_line_a_gpu_whose_name_has_the_words(capsys):
    head, nvl, *_, last = listed(capsys, "h100 nvl").splitlines()
    assert head.split() == ["GPU", "capability", "memory", "bandwidth"]
    assert nvl.split() == ["H100", "NVL", "94", "GB", "9.0", "~94", "GiB", "HBM3", "3,940", "GB/s"]
    assert last == "here: no NVIDIA GPU that a driver shows"


def test_a_size_that_drivers_reported_has_no_mark(capsys):
    assert "  39.39 GiB  " in listed(capsys, "A100 SXM4 40")


def test_a_memory_asked_for_is_the_nominal_one(capsys):
    output = listed(capsys, "rtx 4090", memory="24 GiB")
    assert "GeForce RTX 4090 " in output
    assert "GeForce RTX 4090 Mobile" not in output  # 16 GiB


def test_slices_are_listed_where_they_are_asked_for(capsys):
    output = listed(capsys, "a100 sxm4 40 mig")
    assert output.count("A100 SXM4 40 GB MIG") == 6
    assert "MIG 3g.20gb" in output


def test_what_is_here_and_what_was_measured_is_told(capsys, monkeypatch):
    monkeypatch.setattr(listing, "gpus_here", lambda: (HERE,))
    for size in (500 * MIB, 520 * MIB):
        record_context(HERE.name, driver=HERE.driver, torch_version="2.13.0+cu130", num_bytes=size)
    *_, here, measured = listed(capsys, "h100").splitlines()
    assert here == (
        "here: NVIDIA H100 80GB HBM3 (9.0), 80 GiB, 2 GiB held by others, driver 580.65.06"
    )
    assert measured == (
        "measured: NVIDIA H100 80GB HBM3, context 510 MiB (500 MiB to 520 MiB in 2 measurements), "
        "driver 580.65.06, torch 2.13.0+cu130"
    )


def test_json_has_all_of_it(capsys, monkeypatch):
    monkeypatch.setattr(listing, "gpus_here", lambda: (HERE,))
    record_context("NVIDIA L4", driver="580", torch_version="2.13.0", num_bytes=7)
    found = json.loads(listed(capsys, "a100 sxm4 40", as_json=True))
    (device,) = found["devices"]
    assert device["name"] == "A100 SXM4 40 GB"
    assert device["architecture"] == [8, 0]
    assert device["capacity"]["low_bytes"] == device["capacity_bytes"]
    assert device["context"]["source"]
    assert device["peak_flops"]["tf32"] == pytest.approx(156e12, rel=0.01)
    assert [gpu["held_bytes"] for gpu in found["here"]] == [2 * GIB]
    assert found["measured"] == [
        {
            "device_name": "NVIDIA L4",
            "driver": "580",
            "torch_version": "2.13.0",
            "sizes_bytes": [7],
            "workspaces": None,
        }
    ]


@pytest.mark.parametrize(
    ("name_part", "memory", "words"),
    [
        ("rtx 4091", None, "near it: 'GeForce RTX 4090'"),
        ("no such thing", None, "paretune devices"),
        ("rtx 4090", "500 GiB", "with 500 GiB or more"),
        ("rtx 4090", "much", "is not a number with a unit"),
    ],
)
def test_a_filter_that_leaves_none_is_refused(name_part, memory, words):
    with pytest.raises(InputError, match=words):
        listing.devices(name_part, memory=memory, as_json=False)


def test_what_is_measured_is_told(capsys, monkeypatch):
    found = MeasuredContext(
        device_name="NVIDIA L4", driver="580", torch_version="2.13.0", sizes_bytes=(500 * MIB,)
    )
    monkeypatch.setattr(context_measurement, "measure_context", lambda: found)
    listing.measure(as_json=False)
    assert capsys.readouterr().out.startswith("measured: NVIDIA L4, context 500 MiB ")
    listing.measure(as_json=True)
    assert json.loads(capsys.readouterr().out)["sizes_bytes"] == [500 * MIB]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--measure"], 3, "torch sees no GPU here"),
        (["h100", "--measure"], 2, "leave the filters out"),
    ],
)
def test_measuring_asks_for_a_gpu_and_nothing_else(capsys, monkeypatch, arguments, code, words):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["paretune", "devices", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert words in capsys.readouterr().err
