"""Autocast as CUDA has it, for tensors on the stand-in of a GPU.

Source of the lists and rules: torch's `ATen/autocast_mode.h` (in its include folder, 2.13) and
`aten/src/ATen/autocast_mode.cpp`, the registrations for AutocastCUDA. What CUDA does not list falls
through, though the CPU lists it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.library import fallthrough_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from search.memory.cuda_device import is_on_gpu
from search.memory.cuda_library import installed_kernels

_KEY = "AutocastCPU"
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)  # noqa: SLF001

LOWER_PRECISION = """
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum
    mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
    _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    _scaled_dot_product_flash_attention scaled_dot_product_attention
""".split()  # noqa: SIM905 - a table reads better
FP32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm
    group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
    huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
""".split()  # noqa: SIM905 - a table reads better
FP32_RESULT = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
""".split()  # noqa: SIM905 - a table reads better
FP32_NORM = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
PROMOTED = """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
""".split()  # noqa: SIM905 - a table reads better
RECURRENT = ["_cudnn_rnn"]
"""Cast like the first, weights and all: `autocast_mode.cpp` and `cudnn/AutocastRNN.cpp`."""
BANNED = "binary_cross_entropy"


@contextmanager
def installed_autocast() -> Iterator[None]:
    """While inside, autocast on the CPU follows CUDA's rules for tensors on the stand-in.

    Tensors of the host are left as they are: CUDA's autocast passes them over.
    """
    cache = _WeightCache()
    others = ((name, fallthrough_kernel) for name in _cpu_policies() - _cuda_policies())
    emptied = mock.patch.object(torch, "clear_autocast_cache", cache.clear)
    with installed_kernels(_KEY, itertools.chain(_kernels(cache), others)), emptied:
        yield


def _kernels(cache: _WeightCache) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in (*LOWER_PRECISION, *RECURRENT):
        yield name, functools.partial(_in_lower_precision, _operator(name), cache)
    for name in FP32:
        yield name, functools.partial(_in_fp32, _operator(name))
    for name in FP32_RESULT:
        yield name, functools.partial(_with_fp32_result, _operator(name))
    for name, typed in FP32_NORM.items():
        yield name, functools.partial(_norm, _operator(typed))
    for name in PROMOTED:
        yield name, functools.partial(_in_widest, _operator(name), cache)
    yield BANNED, functools.partial(_banned, _operator(BANNED))


@functools.cache
def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


@functools.cache
def _cpu_policies() -> frozenset[str]:
    """Every operator that autocast on the CPU knows."""
    names = torch._C._dispatch_get_all_op_names()  # noqa: SLF001
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
    known = (name.split("::") for name in names if name.startswith("aten::"))
    return frozenset(name for space, name in known if has_kernel(f"{space}::{name}", _KEY))


def _cuda_policies() -> frozenset[str]:
    return frozenset(
        [*LOWER_PRECISION, *FP32, *FP32_RESULT, *FP32_NORM, *PROMOTED, *RECURRENT, BANNED]
    )


class _WeightCache:
    """Casts of weights, kept until the outermost autocast region ends, under no_grad too.

    Source: `autocast_mode.cpp`, cached_cast; emptied by `torch/amp/autocast_mode.py`, __exit__.
    """

    def __init__(self) -> None:
        self._casts = WeakIdKeyDictionary()
        self._clear_torch = torch.clear_autocast_cache

    def clear(self) -> None:
        """Lets go of every cast."""
        self._casts.clear()
        self._clear_torch()

    def cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """A tensor of the GPU in another floating type; others as they are."""
        if tensor.dtype is dtype or not _is_eligible(tensor):
            return tensor
        keeps = (
            dtype is _lower_dtype()
            and tensor.dtype is torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()  # noqa: SLF001 - as the original asks
            and torch.is_autocast_cache_enabled()
        )
        if not keeps:
            return tensor.to(dtype)
        kept: Tensor | None = self._casts.get(tensor)  # type: ignore[no-untyped-call]
        if kept is None:
            kept = self._casts[tensor] = tensor.to(dtype)
        return kept


def _lower_dtype() -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def _is_eligible(value: object) -> bool:
    """Source: `ATen/autocast_mode.h`, is_eligible."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.dtype is not torch.float64
        and is_on_gpu(value)
    )


def _below(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Calls on, past autocast."""
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):  # noqa: SLF001 - as autocast's own kernels do
        return operator(*args, **kwargs)


def _each(act: Callable[[Tensor], Tensor], values: Iterable[Any]) -> list[Any]:
    """The arguments of an operator with each tensor replaced, in lists of tensors too."""
    return [
        act(value)
        if isinstance(value, Tensor)
        else _each(act, value)
        if isinstance(value, list | tuple)
        else value
        for value in values
    ]


def _below_each(
    act: Callable[[Tensor], Tensor], operator: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Calls on, past autocast, with each tensor replaced."""
    named = dict(zip(kwargs, _each(act, kwargs.values()), strict=True))
    return _below(operator, _each(act, args), named)


def _in_lower_precision(operator: Any, cache: _WeightCache, *args: Any, **kwargs: Any) -> Any:
    dtype = _lower_dtype()
    return _below_each(lambda x: cache.cast(x, dtype), operator, args, kwargs)


def _in_fp32(operator: Any, *args: Any, **kwargs: Any) -> Any:
    return _below_each(_to_fp32, operator, args, kwargs)


def _to_fp32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32) if _is_eligible(tensor) else tensor


def _with_fp32_result(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Asks for a result in fp32 where no type is asked for.

    Source: `ATen/autocast_mode.h`, fp32_set_opt_dtype.
    """
    names = [argument.name for argument in operator._schema.arguments]  # noqa: SLF001
    given = dict(zip(names, args, strict=False)) | kwargs
    if _is_eligible(args[0]) and given.get("dtype") is None:
        kwargs = {name: value for name, value in given.items() if name not in ("self", "dtype")}
        return _below(operator, args[:1], kwargs | {"dtype": torch.float32})
    return _below(operator, args, kwargs)


def _norm(typed: Any, tensor: Tensor, *args: Any) -> Any:
    """Source: the same, fp32_append_dtype; the operator that takes a type is another one."""
    dtype = torch.float32 if _is_eligible(tensor) else tensor.dtype
    power, *rest = args or (2,)
    if not rest and typed is _operator(FP32_NORM["norm.ScalarOpt_dim"]):
        rest = [[]]
    return _below(typed, (tensor, power, *rest), {"dtype": dtype})


def _in_widest(operator: Any, cache: _WeightCache, *args: Any, **kwargs: Any) -> Any:
    """Source: the same, promote_type."""
    eligible = [leaf for leaf in tree_leaves((args, kwargs)) if _is_eligible(leaf)]
    dtype = torch.float32 if any(x.dtype is torch.float32 for x in eligible) else _lower_dtype()
    return _below_each(lambda x: cache.cast(x, dtype), operator, args, kwargs)


def _banned(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Source: `autocast_mode.cpp`, binary_cross_entropy_banned."""
    if any(map(is_on_gpu, args[:2])):
        msg = "binary_cross_entropy is unsafe to autocast; use binary_cross_entropy_with_logits"
        raise RuntimeError(msg)
    return _below(operator, args, kwargs)
