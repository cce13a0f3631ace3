"""Code that torch compiles is found before its memory is predicted, and refused.

Under a trace torch runs such code operator by operator. On the device one compiled kernel stands
for several operators, and what the backward pass keeps is chosen anew (pytorch/pytorch #122512
peaks above eager), so a trace would be wrong and would not say so.

Left out: kernels that were compiled beforehand, such as Triton's, and graphs of `torch.fx`, which
run operator by operator.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from search.errors import UnpredictableError

_COMPILE = "torch.compile"
_SCRIPT = "torch.jit"
_SWITCHES = {_COMPILE: "TORCH_COMPILE_DISABLE=1", _SCRIPT: "PYTORCH_JIT=0"}
"""What in a process's environment makes torch run all such code operator by operator.

Source: torch's `torch/_dynamo/config.py`, `disable`, and `torch/jit/_state.py`, EnabledProxy.
"""
_ALL_SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "PYTORCH_JIT")
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")
"""What wrappers call the module inside them."""


def compiler_switches() -> tuple[str, ...]:
    """What this process says of compilers: a model may be predicted by it, or not."""
    switches = [f"{name}={os.environ[name]}" for name in _ALL_SWITCHES if name in os.environ]
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")  # nobody set a stance without it
    stance = dynamo._stance.stance if dynamo else "default"  # noqa: SLF001 - as below
    return (*switches, f"stance={stance}")


def refuse_compiled_parts(model: nn.Module) -> None:
    """Returns when no part of a model is compiled, whether that part is ever called or not.

    Raises:
        UnpredictableError: naming the part by its place in the model.
    """
    for name, module in model.named_modules():
        by = _SCRIPT if isinstance(module, torch.jit.ScriptModule) else _COMPILE
        if by is _SCRIPT or _is_compiled(module):
            part = ".".join(step for step in name.split(".") if step not in _WRAPPED)
            place = f"the part {part!r} of the model" if part else "the model"
            found = f"{place}, a {_kind(module)},"
            raise _refusal(found, by)


def _is_compiled(module: nn.Module) -> bool:
    """Whether calling it calls what `torch.compile` made of it.

    Source: OptimizedModule in torch's `torch/_dynamo/eval_frame.py`, and Module.compile in its
    `torch/nn/modules/module.py`.
    """
    called = (vars(module).get("_compiled_call_impl"), vars(module).get("forward"))
    optimized = isinstance(module, _dynamo().OptimizedModule)
    return (optimized or any(map(_is_wrapper, called))) and not _is_off()


def _is_wrapper(function: object) -> bool:
    return hasattr(function, "get_compiler_config")


def _is_off() -> bool:
    """Whether settings of this process make all that is compiled run operator by operator."""
    stance: str = _dynamo()._stance.stance  # noqa: SLF001 - torch offers no question for it
    return stance == "force_eager" or bool(_dynamo().config.disable)


def _dynamo() -> Any:
    """The part of torch that compiles: a second to load, and every optimizer loads it."""
    return import_module("torch._dynamo.eval_frame")


def _kind(module: nn.Module) -> str:
    inner = getattr(module, "_orig_mod", module)
    return str(getattr(inner, "original_name", type(inner).__name__))


@contextmanager
def compiled_code_refused() -> Iterator[None]:
    """While inside, what torch would compile is run operator by operator, and refused at the end.

    Raises:
        UnpredictableError: naming the first such code that was called, also where the run failed.
    """
    found: list[UnpredictableError] = []
    with ExitStack() as stack:
        stack.enter_context(_compile_noted(found))
        stack.enter_context(_scripts_noted(found))
        try:
            yield
        except Exception as error:
            if found and not isinstance(error, UnpredictableError):
                raise found[0] from error
            raise
    if found:
        raise found[0]


def _compile_noted(found: list[UnpredictableError]) -> Any:
    """Each call of what `torch.compile` made asks which compiler to use: none.

    Source: torch's `torch/_dynamo/eval_frame.py`, `_TorchDynamoContext.__call__`.
    """
    asked = _dynamo()._callback_from_stance  # noqa: SLF001 - the one place that all calls pass

    def none(callback: Any) -> Any:
        if callback in (None, False) or _is_off():
            return asked(callback)
        caller = sys._getframe(1).f_locals  # noqa: SLF001 - it holds the function, the callback does not
        found.append(_refusal(_described(caller.get("fn")), _COMPILE))
        return None

    return mock.patch.object(_dynamo(), "_callback_from_stance", none)


@contextmanager
def _scripts_noted(found: list[UnpredictableError]) -> Iterator[None]:
    """Functions and methods of TorchScript, called by Python."""
    with ExitStack() as stack:
        for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):  # noqa: SLF001 - not exported
            stack.enter_context(mock.patch.object(kind, "__call__", _noting(kind, found)))
        yield


def _noting(kind: Any, found: list[UnpredictableError]) -> Callable[..., Any]:
    called = kind.__call__

    def noted(script: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(_refusal(f"{script.name}()", _SCRIPT))
        return called(script, *args, **kwargs)

    return noted


def _described(function: Any) -> str:
    """A function by its name and where it is defined, as far as Python tells."""
    function = getattr(function, "__func__", function)
    name = getattr(function, "__qualname__", type(function).__name__)
    code = getattr(function, "__code__", None)
    place = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
    return f"{name}(){place}"


def _refusal(place: str, by: str) -> UnpredictableError:
    msg = (
        f"{place} is compiled by {by}, whose memory cannot be predicted (leave {by} out, run with "
        f"{_SWITCHES[by]} in the environment, or train without a prediction: memory.gate: false)"
    )
    return UnpredictableError(msg)
