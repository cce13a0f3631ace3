"""What a process that trains takes of the GPU outside torch's allocator, measured in a fresh one.

A process of its own, as a trial's worker is: in one that has already used the GPU, the context is
there before the first look. Left out: kernels that no small transformer runs.
"""

from __future__ import annotations

import sys

import torch

from search.errors import MachineError
from search.memory import workspace_measurement
from search.memory.contexts import MeasuredContext, measured_context, record_context
from search.memory.device import cuda_context_bytes, device_here
from search.memory.elsewhere import measured_by
from search.memory.nvml import gpu_with
from search.memory.process import prepare_process


def measure_context() -> MeasuredContext:
    """Measures the current GPU once more and remembers it; what is known of it then.

    That is the context, and the workspaces of the libraries of matrix products, each in a process
    of its own.

    Raises:
        MachineError: when no GPU is here that torch can use, or the measuring process fails.
    """
    if not torch.cuda.is_available():
        msg = (
            "torch sees no GPU here, so nothing can be measured (measure where the GPU is; "
            "whether torch was built for CUDA: python -c 'import torch; print(torch.version.cuda)')"
        )
        raise MachineError(msg)
    device, version = device_here(), str(torch.__version__)
    if device.driver is None:
        msg = (
            f"the driver of {device.name} tells nothing through NVML, so what others hold of it is "
            "not known (is nvidia-ml-py installed, and libnvidia-ml.so.1 to be found?)"
        )
        raise MachineError(msg)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    num_bytes = _measured_elsewhere(str(properties.uuid))
    workspaces = workspace_measurement.measured_elsewhere()
    record_context(
        device.name,
        driver=device.driver,
        torch_version=version,
        num_bytes=num_bytes,
        workspaces=workspaces,
    )
    known = measured_context(device.name, driver=device.driver, torch_version=version)
    return known or MeasuredContext(  # where nothing could be kept
        device_name=device.name,
        driver=device.driver,
        torch_version=version,
        sizes_bytes=(num_bytes,),
        workspaces=workspaces,
    )


def _measured_elsewhere(uuid: str) -> int:
    return measured_by(__name__, uuid, what="the context of the GPU")


def measured_here(uuid: str) -> int:
    """What this process takes of a GPU that it has not touched yet, in bytes.

    What others hold is what the driver tells before the first touch. Afterwards it cannot be told
    apart from our own: in a container the driver's process numbers are not ours.
    """
    before = gpu_with(uuid)
    prepare_process()
    torch.cuda.synchronize()
    return max(0, cuda_context_bytes() - (before.held_bytes if before else 0))


if __name__ == "__main__":
    print(measured_here(sys.argv[1]))  # noqa: T201 - the answer to the process that asked
