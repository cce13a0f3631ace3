"""Liger's benchmarks of losses over a vocabulary, in plain torch.

Source: linkedin/Liger-Kernel, `benchmark/scripts/benchmark_{cross_entropy,kl_div,jsd,tvd,
fused_linear_cross_entropy,fused_linear_jsd,distill_cosine_loss,distill_jsd_loss,embedding}.py`,
`test/utils.py` (HFDistillationLoss) and `test/chunked_loss/test_{cosine,jsd}_loss.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.liger_bench import Bench, Setting, of_loss, of_noise

_FIRST_WITH_ONE_HEAD = 0, 6, 2
"""Since then the script builds the head that it measures alone, told by its accumulating one."""


def cross_entropy(setting: Setting) -> Bench:
    """Of logits that are leaves."""
    num_classes = setting.size("V", "vocab_size")
    x = setting.noise(setting.num_tokens, num_classes, trained=True)
    target = setting.classes(num_classes, setting.num_tokens, 1).squeeze(1)
    loss = nn.CrossEntropyLoss()
    return Bench(forward=lambda: loss(x, target), backward=of_loss, retains_graph=False)


def fused_linear_cross_entropy(setting: Setting) -> Bench:
    """Of a linear layer's logits; Liger's layer of the same size stands beside it."""
    width, num_classes = setting.size("H", "hidden_size"), setting.size("V", "vocab_size")
    alone = "hidden_size" in setting.config or setting.version >= _FIRST_WITH_ONE_HEAD
    heads = [setting.linear(width, num_classes) for _ in range(1 if alone else 2)]
    x = setting.noise(setting.num_tokens, width, trained=True)
    target = setting.classes(num_classes, setting.num_tokens, 1).squeeze(1)
    loss = nn.CrossEntropyLoss()
    return Bench(forward=lambda: loss(heads[0](x), target), backward=of_loss, retains_graph=False)


def kl_div(setting: Setting) -> Bench:
    """Between a log-softmax and a softmax, each made once of leaves."""
    x, target = _distributions(setting, torch.log_softmax, torch.softmax)
    loss = nn.KLDivLoss(reduction="batchmean")
    return Bench(forward=lambda: loss(x, target), backward=of_loss)


def jsd(setting: Setting) -> Bench:
    """Between two log-softmaxes."""
    x, target = _distributions(setting, torch.log_softmax, torch.log_softmax)
    return Bench(forward=lambda: _jsd(x, target), backward=of_loss)


def tvd(setting: Setting) -> Bench:
    """Half the absolute distance of two softmaxes."""
    x, target = _distributions(setting, torch.softmax, torch.softmax)

    def forward() -> Tensor:
        distance = torch.abs(x - target) / 2.0
        return torch.sum(distance) / x.size(0)

    return Bench(forward=forward, backward=of_loss)


def fused_linear_jsd(setting: Setting) -> Bench:
    """Between the log-softmaxes of two linear layers; Liger's two share their weights."""
    width, num_classes = setting.size("H", "hidden_size"), setting.size("V", "vocab_size")
    student, teacher = (setting.linear(width, num_classes) for _ in range(2))
    student_x = setting.noise(setting.num_tokens, width, trained=True)
    teacher_x = setting.noise(setting.num_tokens, width)

    def forward() -> Tensor:
        student_logits = student(student_x)
        teacher_logits = teacher(teacher_x)
        log_q = torch.log_softmax(student_logits / 1.0, dim=-1)
        log_p = torch.log_softmax(teacher_logits / 1.0, dim=-1)
        return _jsd(log_q, log_p).to(setting.dtype)

    return Bench(forward=forward, backward=of_loss, retains_graph=False)


def distill_cosine_loss(setting: Setting) -> Bench:
    """Half the cross entropy, half the cosine distance of two linear layers' logits."""
    return _distilled(setting, _cosine_distance)


def distill_jsd_loss(setting: Setting) -> Bench:
    """The same with the Jensen-Shannon divergence."""
    return _distilled(setting, _mean_jsd)


def embedding(setting: Setting) -> Bench:
    """Rows of a table."""
    num_rows, width = setting.size("V", "vocab_size"), setting.size("D", "hidden_size")
    table = nn.Embedding(num_rows, width).to(setting.device).to(setting.dtype)
    spare = [nn.Embedding(num_rows, width) for _ in range(2)] if "V" in setting.config else []
    spare = [module.to(setting.device).to(setting.dtype) for module in spare]
    index = setting.classes(num_rows, setting.num_tokens)

    def forward() -> Tensor:
        _ = spare
        found: Tensor = table(index)
        return found

    return Bench(forward=forward, backward=of_noise, retains_graph=False)


def _distributions(
    setting: Setting, of_x: Callable[..., Tensor], of_target: Callable[..., Tensor]
) -> tuple[Tensor, Tensor]:
    """Two distributions a token; the first goes back to a leaf, which stays alive behind it."""
    shape = setting.num_tokens, setting.size("V", "vocab_size")
    x = of_x(setting.noise(*shape, trained=True), dim=-1)
    return x, of_target(setting.noise(*shape), dim=-1)


def _jsd(log_q: Tensor, log_p: Tensor) -> Tensor:
    """Source: the scripts' TorchJSD."""
    divergence = nn.KLDivLoss(reduction="none", log_target=True)
    log_p, log_q = log_p.to(torch.float), log_q.to(torch.float)
    mean = torch.lerp(torch.exp(log_q), torch.exp(log_p), 0.5)
    loss = 0.5 * divergence(torch.log(mean), log_p).sum(dim=-1) + 0.5 * divergence(
        torch.log(mean), log_q
    ).sum(dim=-1)
    return (loss / log_q.shape[0]).sum()


def _distilled(setting: Setting, soft_loss: Callable[[Tensor, Tensor], Tensor]) -> Bench:
    """A student of half the teacher's width; both of Liger's layers stand beside it."""
    old = "H" in setting.config
    width, num_classes = setting.size("H", "hidden_size"), setting.size("V", "vocab_size")
    num_tokens = setting.num_tokens
    student, teacher, *spare = (
        setting.linear(part, num_classes) for part in (width // 2, width) * (2 if old else 1)
    )
    drawn = setting.noise(num_tokens, width // 2)
    student_x, *others = (drawn.detach().clone().requires_grad_() for _ in range(2 if old else 1))
    teacher_x = setting.noise(num_tokens, width)
    target = setting.classes(num_classes, num_tokens)
    beside = spare, others, drawn

    def forward() -> Tensor:
        _ = beside
        student_logits, teacher_logits, hard = _logits_and_loss(
            (student_x, student.weight), (teacher_x, teacher.weight), target
        )
        student_logits /= 1.0
        teacher_logits /= 1.0
        return 0.5 * hard + 0.5 * soft_loss(student_logits, teacher_logits)

    return Bench(forward=forward, backward=of_loss, retains_graph=False)


def _logits_and_loss(
    student: tuple[Tensor, Tensor], teacher: tuple[Tensor, Tensor], target: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """fp32 logits of both, and the student's cross entropy. The layers' biases are left out."""
    student_x, student_weight = student
    teacher_x, teacher_weight = teacher
    student_outputs = student_x @ student_weight.t()
    with torch.no_grad():
        teacher_outputs = teacher_x @ teacher_weight.t()
    student_logits, teacher_logits = student_outputs.float(), teacher_outputs.float()
    torch.all(target == -100)
    return student_logits, teacher_logits, nn.CrossEntropyLoss()(student_logits, target)


def _cosine_distance(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    student_norm = functional.normalize(student_logits, p=2, dim=-1)
    teacher_norm = functional.normalize(teacher_logits, p=2, dim=-1)
    similarity = functional.cosine_similarity(student_norm, teacher_norm, dim=-1)
    loss = 1.0 * (1 - similarity)
    return loss.mean()


def _mean_jsd(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    log_q = functional.log_softmax(student_logits, dim=-1)
    log_p = functional.log_softmax(teacher_logits, dim=-1)
    mean = 0.5 * log_q.exp() + 0.5 * log_p.exp()
    log_mean = mean.log()
    of_q = functional.kl_div(log_mean, log_q, reduction="batchmean", log_target=True)
    of_p = functional.kl_div(log_mean, log_p, reduction="batchmean", log_target=True)
    return 0.5 * of_p + 0.5 * of_q
