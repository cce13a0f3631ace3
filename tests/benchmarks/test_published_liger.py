from __future__ import annotations

import pytest

from benchmarks.liger_bench import Setting, median_peak_bytes
from benchmarks.published_liger import (
    BUILDERS,
    covers,
    line,
    predicted_allocated_bytes,
    why_not,
)
from search.errors import InputError
from search.memory.cuda import Cuda

MIB = 2**20
NUMBER = 512  # the least that the allocator hands out


def _row(operator, config, *, provider="torch", mode="full", gpu="NVIDIA A100-SXM4-80GB"):
    return {
        "id": "liger-000",
        "model": f"op:{operator} ({provider} baseline)",
        "task": f"op:{mode}",
        "config": config,
        "gpu": gpu,
        "grade": "A",
        "software": "liger 0.4.2 (torch version not recorded)",
        "value": 1.0,
    }


def test_layer_norm_holds_five_inputs_two_layers_and_what_it_normalized_by():
    """Published: 80.0625 MiB on an A100 (liger 0.2.1) and on an H100 (liger 0.6.0).

    4096 rows of 1024 fp32 numbers are 16 MiB: the input, its gradient, the output, the output's
    gradient from the start, and the gradient to be added: 80. In KiB: weight and bias of both
    providers' layers 4 x 4, the gradients of one and those to be added 4 x 4, a mean and a
    deviation a row 2 x 16: 64.
    """
    config = {"M": 4096, "N": "1024", "dtype": "torch.float32", "eps": 1e-06}
    expected = 80 * MIB + 64 * 1024
    assert expected / MIB == 80.0625
    assert predicted_allocated_bytes(_row("layer_norm", config)) == expected
    hopper = _row("layer_norm", config, gpu="NVIDIA H100 80GB HBM3")
    assert predicted_allocated_bytes(hopper) == expected


def test_cross_entropy_holds_five_logits():
    """Published: 1280.1259765625 MiB on an A100 (liger 0.2.1).

    8 x 2048 x 4096 fp32 logits are 256 MiB: they, their log-softmax, the gradient of that, the
    gradient of the logits, and the one to be added. Labels are 8 bytes a token. The loss is still
    known, and so is the gradient it started from: two numbers.
    """
    config = {"B": 8, "T": 2048, "V": "4096"}
    expected = 5 * 256 * MIB + 8 * 2048 * 8 + 2 * NUMBER
    assert expected / MIB == 1280.1259765625
    assert predicted_allocated_bytes(_row("cross_entropy", config)) == expected


def test_swiglu_holds_its_block_and_the_workspaces_of_both_threads():
    """Published: 1294.25 MiB on an A100 (liger 0.2.1).

    A weight of 4096 x 11008 bf16 numbers is 86 MiB, and 4 x 1024 rows of the inner width are as
    much. Three weights, their gradients; two of the three that are to be added are not there yet.
    Of the inner width: gate, its activation, up, their product; going backward, the gradients of
    the product, the activation, the up projection, and of the gate. That the sum is 13 follows:
    3 + 3 + 7. Of the outer width, 32 MiB: input, its gradient, output, its gradient, and the
    gradient that comes through one of the two projections. 2 x 8,519,680 B are cuBLAS's.
    """
    config = {"B": 4, "T": "1024", "hidden_size": 4096, "intermediate_size": 11008}
    config |= {"hidden_act": "silu", "dtype": "torch.bfloat16"}
    expected = 13 * 86 * MIB + 5 * 32 * MIB + 2 * 8_519_680
    assert expected / MIB == 1294.25
    assert predicted_allocated_bytes(_row("swiglu", config, provider="huggingface")) == expected


def test_forward_alone_keeps_both_workspaces_of_the_full_steps_before():
    config = {"bsz": 1, "T": "256", "hidden_size": 1024, "intermediate_size": 2048}
    config |= {"hidden_act": "gelu_pytorch_tanh", "dtype": "torch.bfloat16"}
    by_mode = {
        mode: predicted_allocated_bytes(_row("geglu", config, mode=mode))
        for mode in ("forward", "backward", "full")
    }
    assert 2 * 8_519_680 < by_mode["forward"] < by_mode["backward"]
    assert by_mode["backward"] == by_mode["full"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (_row("gemm_split_k", {}), "no benchmark of 'gemm_split_k' is rebuilt"),
        (_row("jsd", {}, provider="liger"), "'liger' runs no operators of torch alone"),
        (_row("jsd", {}, provider="torch_compile"), "'torch_compile' runs no operators of torch"),
        (_row("jsd", {}, gpu="AMD MI300X"), "the architecture of 'AMD MI300X' is not known"),
        (_row("jsd", {"model_config": "LLAMA"}), "the sizes of the model are not given"),
    ],
)
def test_a_row_that_is_not_rebuilt_says_why(row, reason):
    assert not covers(row)
    assert why_not(row).startswith(reason)
    assert f"not rebuilt: {reason}" in line(row)
    with pytest.raises(InputError, match="liger-000"):
        predicted_allocated_bytes(row)


def test_a_layer_beside_the_measured_one_is_there_until_the_script_built_it_no_more():
    config = {"H": 64, "V": 4096, "BT": "64", "dtype": "torch.bfloat16", "mode": "forward"}
    by_version = {}
    for version in ("0.4.2", "0.6.2"):
        row = _row("fused_linear_cross_entropy", config) | {"software": f"liger {version}"}
        by_version[version] = predicted_allocated_bytes(row)
    assert by_version["0.4.2"] - by_version["0.6.2"] == 64 * 4096 * 2


_MLP = {"hidden_size": 256, "intermediate_size": 512, "hidden_act": "silu", "bsz": 2}
_HEADS = {"hidden_size": 512, "num_q_heads": 8, "num_kv_heads": 2}
_LOSS = {"H": 64, "V": 1024, "dtype": "torch.bfloat16"}
_SCORES = {"B": 2, "C_in": 4, "C_out": 4, "K": 3, "groups": 1, "bias": True}
_GROUPS = {"M": 4, "H": 64, "channels_per_group": 4}
_EXPERTS = {"E": 4, "H": 64, "intermediate_dim": 32, "K": 2, "dtype": "torch.bfloat16"}

SMALL = {
    "cross_entropy": ({"B": 2, "T": 64}, "V"),
    "distill_cosine_loss": (_LOSS, "BT"),
    "distill_jsd_loss": (_LOSS, "BT"),
    "dpo_loss": ({**_LOSS, "T": 32, "bias": True}, "B"),
    "dyt": ({"hidden_size": 256}, "BT"),
    "embedding": ({"B": 4, "T": 32, "D": 64}, "V"),
    "fused_add_rms_norm": ({"M": 64}, "H"),
    "fused_linear_cpo_loss": ({**_LOSS, "T": 32}, "B"),
    "fused_linear_cross_entropy": (_LOSS, "BT"),
    "fused_linear_grpo_loss_sequence": (
        {**_LOSS, "T": 32, "importance_sampling_level": "sequence"},
        "B",
    ),
    "fused_linear_grpo_loss_token": ({**_LOSS, "T": 32}, "B"),
    "fused_linear_jsd": (_LOSS, "BT"),
    "fused_linear_orpo_loss": ({**_LOSS, "T": 32}, "B"),
    "fused_linear_simpo_loss": ({**_LOSS, "T": 32}, "B"),
    "fused_moe": (_EXPERTS, "T"),
    "fused_neighborhood_attention": (
        {"batch_size": 2, "hidden_size": 128, "num_heads": 4, "bias": True},
        "seq_len",
    ),
    "geglu": (_MLP, "T"),
    "group_norm": (_GROUPS, "C"),
    "jsd": ({"B": 2, "T": 64}, "V"),
    "kl_div": ({"B": 2, "T": 64}, "V"),
    "kto_loss": ({**_LOSS, "T": 32, "bias": True}, "B"),
    "layer_norm": ({"M": 64}, "N"),
    "llama4_rope": (_HEADS, "T"),
    "megatron_rms_norm": ({"S": 64, "B": 1}, "H"),
    "megatron_swiglu": ({"S": 64, "B": 1}, "ffn_local"),
    "multi_token_attention": (_SCORES, "L"),
    "poly_norm": ({"M": 64}, "H"),
    "qwen2vl_mrope": (_HEADS, "T"),
    "relu_squared": ({"M": 64}, "N"),
    "rms_norm": ({"M": 64, "dtype": "torch.bfloat16"}, "H"),
    "rope": (_HEADS, "T"),
    "softmax": ({"M": 64}, "N"),
    "sparse_multi_token_attention": (_SCORES, "L"),
    "sparsemax": ({"B": 2, "T": 32}, "V"),
    "swiglu": (_MLP, "T"),
    "tiled_geglu": (_MLP, "T"),
    "tiled_swiglu": ({**_MLP, "num_shards": 2}, "T"),
    "tvd": ({"B": 2, "T": 64}, "V"),
}


def test_each_operator_has_a_small_configuration_here():
    assert set(SMALL) == set(BUILDERS)


@pytest.mark.parametrize("operator", sorted(SMALL))
def test_more_of_what_is_swept_takes_more(operator):
    config, swept = SMALL[operator]
    provider = "deepspeed_tiled" if "num_shards" in config else "torch"
    few, many = (
        predicted_allocated_bytes(_row(operator, {**config, swept: count}, provider=provider))
        for count in ("128", "512")
    )
    assert few % NUMBER == 0
    assert few < many


NEWER = {
    "group_norm": {"num_channels": 64, "channels_per_group": 4, "H": 64, "M": "8"},
    "jsd": {"vocab_size": 1024, "BT": "64"},
    "layer_norm": {"hidden_size": 256, "BT": "64", "dtype": "torch.bfloat16"},
    "relu_squared": {"hidden_size": 256, "BT": "64"},
    "rms_norm": {"hidden_size": 256, "BT": "64", "dtype": "torch.bfloat16"},
}


@pytest.mark.parametrize("operator", sorted(NEWER))
def test_the_names_of_newer_scripts_are_read_too(operator):
    assert covers(_row(operator, NEWER[operator]))
    assert predicted_allocated_bytes(_row(operator, NEWER[operator])) > 0


def test_a_size_that_is_missing_is_named():
    target = Cuda(architecture=(8, 0))
    setting = Setting(config={}, version=(), provider="torch", device=target.device)
    with pytest.raises(KeyError, match="V or vocab_size"):
        median_peak_bytes(BUILDERS["cross_entropy"], setting, mode="full", target=target)
