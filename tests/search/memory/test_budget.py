import resource

import pytest
import torch

from search.memory.budget import enforce_budget, is_out_of_memory
from search.memory.device import Device

CPU = Device(name="a processor", kind="cpu", capacity_bytes=2**40)


class TestBudget:
    def test_is_lifted_afterwards_and_after_a_fault(self):
        before = resource.getrlimit(resource.RLIMIT_DATA)
        with enforce_budget(CPU, 2**30):
            assert resource.getrlimit(resource.RLIMIT_DATA) != before
        assert resource.getrlimit(resource.RLIMIT_DATA) == before
        with pytest.raises(KeyError), enforce_budget(CPU, 2**30):
            raise KeyError
        assert resource.getrlimit(resource.RLIMIT_DATA) == before

    def test_what_fits_runs_and_what_does_not_fails_alone(self, fresh):
        found = fresh("""
            import resource

            def outcomes():
                for size in (60, 70, 60):
                    try:
                        with enforce_budget(device, 64 * 2**20):
                            torch.ones(size * 2**18)
                        yield "ran"
                    except RuntimeError as error:
                        yield is_out_of_memory(error)

            found = list(outcomes())
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (2**34, hard))
            with enforce_budget(device, 2**40):
                found.append(resource.getrlimit(resource.RLIMIT_DATA)[0])
            found.append(resource.getrlimit(resource.RLIMIT_DATA)[0])
            print(json.dumps(found))
        """)
        assert found[:3] == ["ran", True, "ran"]
        assert found[3:] == [2**34, 2**34]  # a narrower limit of the user stays


class TestOutOfMemory:
    def test_is_told_from_other_faults_under_a_real_limit(self, fresh):
        found = fresh("""
            import numpy
            parameter = torch.ones(4096, 4096, requires_grad=True)
            image, kernel = torch.ones(4, 8, 512, 512), torch.ones(64, 8, 3, 3)
            attempts = {
                "a tensor": lambda: torch.ones(2**26),
                "bf16": lambda: torch.ones(2**26, dtype=torch.bfloat16),
                "Python": lambda: bytearray(2**28),
                "NumPy": lambda: numpy.ones(2**26),
                "a module": lambda: torch.nn.Linear(8192, 8192),
                "backward": lambda: (parameter @ parameter).sum().backward(),
                "a convolution": lambda: torch.nn.functional.conv2d(image, kernel),
                "a wrong shape": lambda: torch.ones(2, 3) @ torch.ones(2, 3),
            }
            found = {}
            for name, attempt in attempts.items():
                try:
                    with enforce_budget(device, 16 * 2**20):
                        attempt()
                except BaseException as error:
                    found[name] = is_out_of_memory(error)
            print(json.dumps(found))
        """)
        assert found.pop("a wrong shape") is False
        assert len(found) == 7
        assert all(found.values()), found

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (MemoryError(), True),
            (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
            (RuntimeError("could not create a primitive"), True),
            (RuntimeError("std::bad_alloc"), True),
            (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling ..."), True),
            (OSError(12, "Cannot allocate memory"), True),
            (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
            (ValueError("DefaultCPUAllocator: can't allocate memory"), False),
            (KeyError("memory"), False),
            (KeyboardInterrupt(), False),
        ],
    )
    def test_is_known_by_kind_and_words(self, error, expected):
        assert is_out_of_memory(error) is expected
