"""How classifiers are judged, whatever they sort.

Tensors carry their shape: B samples, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.nn import functional

from search.metric import Goal, Metric

CLASS_METRICS = (
    Metric(name="accuracy", goal=Goal.MAX),
    Metric(name="negative_log_likelihood", goal=Goal.MIN, unit="nats"),
)


def class_metrics(
    scored: Iterable[tuple[Tensor, Tensor]],
    loss: Callable[..., Tensor] = functional.cross_entropy,
) -> dict[str, float]:
    """Over all samples the share told right, and the mean negative log-likelihood.

    Args:
        scored: of each batch what its samples are given for each class, (B, K), and their classes.
        loss: of these two, in nats; its `reduction` is `sum`.
    """
    num_right, total_nats, num_samples = 0, 0.0, 0
    for scores_BK, classes_B in scored:
        num_right += int((scores_BK.argmax(dim=1) == classes_B).sum())
        total_nats += loss(scores_BK, classes_B, reduction="sum").item()
        num_samples += len(classes_B)
    return {
        "accuracy": num_right / num_samples,
        "negative_log_likelihood": total_nats / num_samples,
    }
