import math

import pytest
import torch
from torch.nn import functional

from objectives.language_model import LanguageModel
from objectives.text_classifier import TextRegressor
from search.compression.checks import teaching_refusal
from search.compression.distillation import soft_loss
from search.compression.params import Teacher
from search.errors import InputError
from search.objective import scores
from search.training import TrainingRun

CPU = torch.device("cpu")
PARAMS = {"width": 32, "depth": 1, "sequence_length": 16, "batch_size": 4, "learning_rate": 1e-2}
TEACHER = {"width": 64, "depth": 2, "heads": 2}


@pytest.fixture(scope="module")
def objective():
    return LanguageModel(held_out_tokens=2_048, evaluation_context=64)


@pytest.fixture(scope="module")
def teacher(objective, tmp_path_factory):
    """A model with its weights in a file."""
    file = tmp_path_factory.mktemp("teacher") / "model.pt"
    torch.manual_seed(7)
    torch.save(objective.model(TEACHER).state_dict(), file)
    return Teacher(name="larger", params=TEACHER, weights=str(file))


def run(objective, teacher=None, **params):
    return TrainingRun(
        objective, {**PARAMS, **params}, num_tokens=10_000, device=CPU, teacher=teacher
    )


def losses(a_run, num_steps=4):
    return [a_run.step().loss.item() for _ in range(num_steps)]


def test_weight_0_is_plain_training_to_the_bit(objective, teacher):
    plain, taught = run(objective), run(objective, teacher, distillation_weight=0.0)
    assert taught.teacher is None
    assert losses(plain) == losses(taught)
    for ours, theirs in zip(plain.model.parameters(), taught.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_teacher_leaves_the_student_begin_as_it_would(objective, teacher):
    plain, taught = run(objective), run(objective, teacher, distillation_weight=0.5)
    for ours, theirs in zip(plain.model.parameters(), taught.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_teacher_has_its_weights_and_keeps_them(objective, teacher):
    taught = run(objective, teacher, distillation_weight=0.5)
    losses(taught)
    state = torch.load(teacher.weights)
    assert all(torch.equal(each, state[name]) for name, each in taught.teacher.named_parameters())
    assert not any(each.requires_grad for each in taught.teacher.parameters())


def test_a_student_alone_with_its_teacher_comes_to_say_the_same(objective, teacher):
    """At weight 1 the loss is the divergence from the teacher: it falls, to 0 for the teacher."""
    taught = run(objective, teacher, distillation_weight=1.0, distillation_temperature=1.0)
    first, *_, last = losses(taught, num_steps=30)
    assert last < 0.5 * first
    same = run(objective, teacher, distillation_weight=1.0, width=64, depth=2, heads=2)
    same.model.load_state_dict(torch.load(teacher.weights))
    assert same.step().loss.item() == pytest.approx(0, abs=1e-6)


def test_the_loss_is_shared_by_the_weight(objective, teacher):
    hard, half, soft = (
        run(objective, teacher, distillation_weight=weight).step().loss.item()
        for weight in (0.0, 0.5, 1.0)
    )
    assert half == pytest.approx((hard + soft) / 2, rel=1e-5)


def test_the_soft_loss_by_hand():
    """Two classes at temperature 2: teacher (ln 9, 0) is softened to 3 : 1, student to 1 : 1."""
    theirs, ours = torch.tensor([[math.log(9), 0.0]]), torch.zeros(1, 2)
    found = soft_loss(ours, theirs, torch.tensor([0]), temperature=2.0)
    divergence = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert found.item() == pytest.approx(4 * divergence)


def test_padding_does_not_count():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = torch.randn(2, 6, 5, generator=generator)
    classes = torch.tensor([0, 1, 2, -100, -100, -100])
    padded = soft_loss(ours, theirs, classes, temperature=3.0)
    assert padded.item() == pytest.approx(
        soft_loss(ours[:3], theirs[:3], classes[:3], temperature=3.0).item()
    )


def test_other_classes_are_refused(objective, teacher):
    told = teaching_refusal(objective, {**PARAMS, "vocabulary": 300}, teacher)
    assert told == (
        "it gives scores of shape (16, 256), this model (16, 300) for the same batch "
        "(give both the same vocabulary)"
    )
    assert teaching_refusal(objective, PARAMS, teacher) == ""
    assert teaching_refusal(objective, {**PARAMS, "loss_chunks": 4}, teacher) == (
        "loss_chunks: must be 1 to learn from a teacher, which takes all logits at once"
    )


def test_what_tells_no_classes_apart_is_refused():
    regressor = TextRegressor()
    with pytest.raises(InputError, match="teacher: TextRegressor tells no classes apart"):
        scores(regressor, regressor.model({}), {})


def test_weights_of_another_model_are_refused(objective, teacher):
    other = Teacher(name="other", params={"width": 32}, weights=teacher.weights)
    with pytest.raises(InputError, match="other weights than its configuration"):
        run(objective, other, distillation_weight=0.5)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_teacher_computes_in_the_precision_of_the_student(objective, teacher, precision):
    taught = run(objective, teacher, distillation_weight=0.5, precision=precision)
    assert all(math.isfinite(loss) for loss in losses(taught))


def test_an_objectives_loss_is_the_cross_entropy_of_its_scores(case):
    objective, params, batch = case
    params = {**params, "loss_chunks": 1, "dropout": 0.0}
    model = objective.model(params)
    logits, classes = scores(objective, model, batch)
    expected = functional.cross_entropy(logits, classes, ignore_index=-100)
    torch.testing.assert_close(objective.loss(model, batch), expected)
