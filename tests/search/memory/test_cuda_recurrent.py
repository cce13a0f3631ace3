import pytest
import torch
from torch import nn

from search.memory.cuda import Cuda
from search.memory.trace import record

GPU = torch.device("cpu", 0)
STEP = 8 * 20 * 64 * 4  # B T H in fp32


def traced(kind, *, dtype=None, **options):
    """Forward and backward of one layer of 64 over 8 sequences of 20 steps of 32."""
    target = Cuda(architecture=(8, 0))

    def run(_):
        with GPU:
            layer = kind(32, 64, batch_first=True, **options)
        x = torch.empty(8, 20, 32, device=GPU, requires_grad=True)
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            out = layer(x)[0]
        out.backward(torch.empty_like(out))
        assert all(param.grad.shape == param.shape for param in layer.parameters())
        run.out = out.detach()

    events = record(run, target)
    forward, backward = (
        [e.num_bytes for e in events if e.operator == operator and e.num_bytes > 0]
        for operator in ("aten._cudnn_rnn.default", "aten._cudnn_rnn_backward.default")
    )
    return forward, backward, target.uncertain_bytes, run.out


def test_an_lstm_by_hand():
    forward, backward, unsure, out = traced(nn.LSTM)
    assert out.shape == (8, 20, 64)
    state, x, gates = 8 * 64 * 4, 8 * 20 * 32 * 4, 4 * STEP
    # Results, two states, the reserve; the input with steps first, and the gates.
    assert forward == [STEP, state, state, 6 * STEP, x, gates]
    # Gradients of input, states, and of all weights in one buffer; the gates.
    weights = (4 * 64 * 32 + 4 * 64 * 64 + 2 * 4 * 64) * 4
    assert backward == [x, state, state, weights, gates]
    assert unsure == (3 * STEP + gates, 6 * STEP + 2 * gates, False)


@pytest.mark.parametrize(("kind", "num_kept"), [(nn.LSTM, 6), (nn.GRU, 5), (nn.RNN, 3)])
def test_the_reserve_by_kind(kind, num_kept):
    assert num_kept * STEP in traced(kind)[0]


def test_layers_directions_and_dropout():
    options = {"num_layers": 2, "bidirectional": True, "dropout": 0.1}
    assert (2 * 5 + 1) * 2 * STEP in traced(nn.GRU, **options)[0]


def test_a_projection():
    forward, _, _, out = traced(nn.LSTM, proj_size=16)
    assert out.shape == (8, 20, 16)
    assert forward[0] == STEP // 4


def test_autocast_halves_it():
    forward, _, _, out = traced(nn.LSTM, dtype=torch.float16)
    assert out.dtype is torch.float16
    assert forward[3] == 3 * STEP


def test_evaluation_keeps_nothing():
    def run(_):
        with GPU:
            layer = nn.GRU(32, 64).eval()
        return layer(torch.empty(20, 8, 32, device=GPU))

    events = record(run, Cuda(architecture=(8, 0)))
    assert all(event.num_bytes != 5 * STEP for event in events)
