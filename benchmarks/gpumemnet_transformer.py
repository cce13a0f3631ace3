"""The Transformer of GPUMemNet's data set, and what its script does with the GPU.

Letters: B samples, T length, E width of the model, C classes.

Source: itu-rad/GPUMemNet, `NeuroNetGen_scripts/Transformer/transformer.py`; the summary that it
prints is that of modelsummary 1.1.7, one more forward pass whose result is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_NUM_MOCK_PASSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSetting:
    """What the script was told; `num_samples` is None where that is not known."""

    width: int
    layers: int
    heads: int
    feedforward: int
    vocabulary: int
    classes: int
    dropout: float
    length: int
    batch: int
    num_samples: int | None


class Classifier(nn.Module):
    """Learned positions, an encoder in post-norm, the mean over the length, one linear layer."""

    def __init__(self, setting: TransformerSetting) -> None:
        """A model on the CPU."""
        super().__init__()
        self.embedding = nn.Embedding(setting.vocabulary, setting.width)
        self.positions_1TE = nn.Parameter(torch.zeros(1, setting.length, setting.width))
        layer = nn.TransformerEncoderLayer(
            setting.width, setting.heads, setting.feedforward, setting.dropout, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, setting.layers)
        self.head = nn.Linear(setting.width, setting.classes)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits of shape (B, C)."""
        hidden_BTE = self.embedding(tokens_BT) + self.positions_1TE
        hidden_BTE = self.encoder(hidden_BTE)
        logits_BC: Tensor = self.head(hidden_BTE.mean(dim=1))
        return logits_BC


def num_parameters(setting: TransformerSetting) -> int:
    """Trained scalars of the model."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Classifier(setting).parameters())


def train_classifier(setting: TransformerSetting, device: torch.device) -> dict[str, Any]:
    """Two mock passes, then training over as many batches as can differ; what is left at its end.

    The last batch's tensors stay until the next one's take their names, as in the script.
    """
    model = Classifier(setting).to(device)
    mock_BT = torch.zeros(setting.batch, setting.length, dtype=torch.int64).to(device)
    for _ in range(_NUM_MOCK_PASSES):
        model(mock_BT)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    model.train()
    for batch in batch_sizes(setting.num_samples, setting.batch):
        tokens_BT = torch.zeros(batch, setting.length, dtype=torch.int64)
        labels_B = torch.zeros(batch, dtype=torch.int64)
        tokens_BT, labels_B = tokens_BT.to(device), labels_B.to(device)
        optimizer.zero_grad()
        logits_BC = model(tokens_BT)
        loss = criterion(logits_BC, labels_B)
        loss.backward()
        optimizer.step()
        loss.item()
        _, predicted_B = torch.max(logits_BC, 1)
        (predicted_B == labels_B).sum().item()
    return locals()


def batch_sizes(num_samples: int | None, batch: int) -> Iterator[int]:
    """One epoch with its repetitions left out, and the beginning of the next.

    The optimizer's state comes with the first step, its steady state with the second; the last
    batch of an epoch is what remains, and after it the whole ones come again.
    """
    samples = 2 * batch if num_samples is None else num_samples
    whole, rest = divmod(samples, batch)
    epoch = [batch] * min(whole, 2) + [rest] * (rest > 0)
    yield from epoch
    yield from epoch[:2]
