import pytest

from search.memory import rates
from search.memory.device import Device
from search.memory.rates import rates_here
from search.memory.speed import step_seconds
from search.memory.work import Arithmetic, OperatorWork, Work

CPU = Device(name="some processor", kind="cpu", capacity_bytes=2**30)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "paretune" / "rates.json"


@pytest.mark.usefixtures("cache")
def test_what_is_measured_is_between_its_ends():
    found = rates_here(CPU)
    assert {"fp32", "bf16", "fp16"} == set(found.flops_per_second)
    assert found.slow.flops <= found.fast.flops == 1.0
    assert found.slow.operator_seconds >= found.fast.operator_seconds > 0
    product = Work(operators=(OperatorWork(Arithmetic.FP32, 10**9, 10**6),))
    slow, fast = (step_seconds(product, found, end) for end in (found.slow, found.fast))
    assert slow >= fast > 0


def test_is_measured_once_for_a_machine(cache, monkeypatch):
    first = rates_here(CPU)
    assert cache.exists()
    monkeypatch.setattr(rates, "_measured", None)
    assert rates_here(CPU) == first


def test_a_damaged_cache_is_measured_again(cache):
    cache.parent.mkdir()
    cache.write_text("{")
    assert rates_here(CPU).bandwidth_bytes_per_second > 0
