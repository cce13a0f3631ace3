import math
from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional

from objectives.seq2seq import Seq2Seq, Seq2SeqParams, Translator, positions
from objectives.sides import IGNORED
from search.errors import InputError
from search.metric import Goal
from search.objective import Split, load_objective

CPU = torch.device("cpu")
SMALL = {"width": 16, "heads": 2, "encoder_depth": 1, "decoder_depth": 1, "dropout": 0.0}
PARAMS = {**SMALL, "vocabulary": 300, "batch_size": 8}
BEGIN, END, PADDING = 297, 298, 299


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def objective(tmp_path_factory) -> Seq2Seq:
    file = tmp_path_factory.mktemp("data") / "numbers.tsv"
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    pairs = (f"{n:03d}\t{' '.join(words[int(digit)] for digit in str(n))}" for n in range(400))
    file.write_text("\n".join(pairs), encoding="utf-8")
    return Seq2Seq(pairs=str(file))


@pytest.fixture(autouse=True)
def seeded():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def batches_of(objective, split=Split.TRAIN, num_tokens=500, **changed):
    return list(objective.data({**PARAMS, **changed}, split, seed=0, num_tokens=num_tokens))


class TestObjective:
    def test_is_found_by_its_path(self):
        assert load_objective("objectives.seq2seq:Seq2Seq") is Seq2Seq

    def test_what_is_better(self):
        goals = {metric.name: metric.goal for metric in Seq2Seq.metrics}
        assert goals == {"bits_per_byte": Goal.MIN, "exact_match": Goal.MAX}

    def test_names_its_data(self, objective):
        assert objective.provenance["train_pairs"] + objective.provenance["held_out_pairs"] == 400


class TestData:
    def test_targets_follow_their_inputs(self, objective):
        for batch in batches_of(objective):
            assert (batch["inputs"][:, 0] == BEGIN).all()
            real = batch["targets"][:, :-1] != IGNORED
            after = batch["inputs"][:, 1:]
            kept = real & (batch["targets"][:, 1:] != IGNORED)
            assert torch.equal(after[kept], batch["targets"][:, :-1][kept])

    def test_whole_targets_end_with_a_mark_and_then_padding_alone(self, objective):
        for batch in batches_of(objective, Split.HELD_OUT):
            lengths = (batch["targets"] != IGNORED).sum(dim=1)
            rows = torch.arange(len(lengths))
            assert (batch["targets"][rows, lengths - 1] == END).all()
            assert (batch["inputs"] == PADDING).sum(dim=1).tolist() == (
                (batch["targets"] == IGNORED).sum(dim=1).tolist()
            )

    def test_held_out_bytes_are_those_of_the_targets(self, objective):
        found = sum(batch["target_bytes"].sum() for batch in batches_of(objective, Split.HELD_OUT))
        assert found == len(objective.corpus.held_out.targets.values)

    @pytest.mark.parametrize("num_tokens", [1, 7, 100, 3_001])
    def test_hold_exactly_the_tokens_asked_for(self, objective, num_tokens):
        batches = batches_of(objective, num_tokens=num_tokens)
        assert sum(map(objective.num_tokens, batches)) == num_tokens

    def test_are_given_once_when_no_number_is_asked(self, objective):
        batches = batches_of(objective, num_tokens=None)
        assert sum(len(batch["sources"]) for batch in batches) == 360

    @pytest.mark.parametrize("bucketing", [1, 4])
    def test_the_pairs_of_a_step_do_not_depend_on_how_it_is_cut(self, objective, bucketing):
        def rows(micro_batch_size):
            found = batches_of(objective, micro_batch_size=micro_batch_size, bucketing=bucketing)
            return [row[row != IGNORED].tolist() for batch in found for row in batch["targets"]]

        assert rows(8) == rows(2) == rows(1)

    @pytest.mark.parametrize("bucketing", [1, 4])
    @pytest.mark.parametrize("length", [3, 16, 99])
    @pytest.mark.parametrize("split", Split)
    def test_the_first_batch_is_the_largest(self, objective, bucketing, length, split):
        changed = {"bucketing": bucketing, "sequence_length": length}
        batches = batches_of(objective, split, num_tokens=None, **changed)
        largest = objective.batch({**PARAMS, **changed}, split)
        for name, tensor in largest.items():
            assert batches[0][name].shape == tensor.shape
            assert all(len(batch[name]) <= len(tensor) for batch in batches)
            assert all(batch[name].shape[1:] <= tensor.shape[1:] for batch in batches)

    def test_only_what_is_trained_on_is_cut(self, objective):
        cut = batches_of(objective, sequence_length=3)
        assert {batch[name].shape[1] for batch in cut for name in batch} == {3}
        whole = [batches_of(objective, Split.HELD_OUT, sequence_length=n) for n in (3, 99)]
        assert all(
            torch.equal(one[name], other[name])
            for one, other in zip(*whole, strict=True)
            for name in one
        )

    def test_larger_vocabularies_need_fewer_tokens(self, objective):
        lengths = [
            objective.tokens_per_sample({**PARAMS, "vocabulary": size, "sequence_length": 99})
            for size in (259, 270, 290)
        ]
        assert lengths[0] == len("three seven seven") + 1
        assert lengths[0] > lengths[1] > lengths[2]

    def test_a_vocabulary_that_the_pairs_cannot_fill_is_refused(self, objective):
        with pytest.raises(InputError, match="vocabulary 4997 is more than these texts give"):
            objective.batch({**PARAMS, "vocabulary": 5_000}, Split.TRAIN)


class TestLoss:
    def test_ignores_padding(self, objective):
        model = objective.model(PARAMS)
        batch = batches_of(objective)[1]
        wider = {
            "sources": functional.pad(batch["sources"], (0, 5), value=PADDING),
            "inputs": functional.pad(batch["inputs"], (0, 5), value=PADDING),
            "targets": functional.pad(batch["targets"], (0, 5), value=IGNORED),
        }
        torch.testing.assert_close(objective.loss(model, batch), objective.loss(model, wider))

    def test_is_that_of_each_pair_alone(self, objective):
        model, batch = objective.model(PARAMS), batches_of(objective)[1]
        total = torch.zeros(())
        for index in range(8):
            source, target = (batch[name][index] for name in ("sources", "targets"))
            source, length = source[source != PADDING], int((target != IGNORED).sum())
            logits = model(source[None], batch["inputs"][index][None, :length])
            total += functional.cross_entropy(logits[0], target[:length], reduction="sum")
        torch.testing.assert_close(
            objective.loss(model, batch) * objective.num_tokens(batch), total
        )

    def test_is_not_rounded_to_bf16(self, objective):
        model = objective.model(PARAMS).to(torch.bfloat16)
        assert objective.loss(model, batches_of(objective)[0]).dtype == torch.float32


class TestEvaluation:
    def test_of_a_uniform_model(self, objective):
        model = objective.model(PARAMS)
        nn.init.zeros_(model.head.weight)  # 300 equal logits for each piece and each end mark
        batches = batches_of(objective, Split.HELD_OUT)
        num_targets = sum(map(objective.num_tokens, batches))
        num_bytes = len(objective.corpus.held_out.targets.values)
        found = objective.evaluate(model, batches)
        assert found["bits_per_byte"] == pytest.approx(math.log2(300) * num_targets / num_bytes)
        assert found["exact_match"] == 0

    def test_bits_do_not_depend_on_how_bytes_are_cut_into_pieces(self, objective):
        # a model that knows each target costs nothing, whatever the vocabulary
        for size in (259, 290):
            params = {**PARAMS, "vocabulary": size}
            batches = list(objective.data(params, Split.HELD_OUT, seed=0))
            found = objective.evaluate(Knowing(batches, size), batches)
            assert found == {"bits_per_byte": pytest.approx(0, abs=1e-6), "exact_match": 1.0}

    def test_a_target_with_one_wrong_piece_is_wrong(self, objective):
        batches = batches_of(objective, Split.HELD_OUT)
        model = Knowing(batches, 300)
        model.logits[0][0, 2] = model.logits[0][0, 2].roll(1)
        found = objective.evaluate(model, batches)
        assert found["exact_match"] == 1 - 1 / objective.provenance["held_out_pairs"]

    def test_right_is_what_choosing_the_likeliest_spells(self, objective):
        model = taught(objective)
        batches = batches_of(objective, Split.HELD_OUT)
        num_right = sum(
            spelled(model, source, len(target)) == target[target != IGNORED].tolist()
            for batch in batches
            for source, target in zip(batch["sources"], batch["targets"], strict=True)
        )
        with torch.no_grad():
            found = objective.evaluate(model, batches)
        assert found["exact_match"] == num_right / objective.provenance["held_out_pairs"]
        assert num_right > 0


class Knowing(nn.Module):
    """Gives each batch in turn the logits of its own targets."""

    def __init__(self, batches, vocabulary: int) -> None:
        super().__init__()
        self.logits = [
            50.0 * functional.one_hot(batch["targets"].clamp(min=0), vocabulary)
            for batch in batches
        ]
        self.turn = iter(self.logits)

    def forward(self, _sources, _inputs):
        return next(self.turn)


def taught(objective) -> nn.Module:
    model = objective.model({**PARAMS, "width": 32})
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    params = {**PARAMS, "batch_size": 32}
    for batch in islice(objective.data(params, Split.TRAIN, seed=0, num_tokens=10**6), 250):
        optimizer.zero_grad()
        objective.loss(model, batch).backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def spelled(model, source, most: int) -> list[int]:
    """What choosing the likeliest piece, one after another, gives: the naive way."""
    source, found = source[source != PADDING], [BEGIN]
    while found[-1] != END and len(found) <= most:
        logits = model(source[None], torch.tensor([found]))
        found.append(int(logits[0, -1].argmax()))
    return found[1:]


class TestTranslator:
    def test_sees_no_later_piece_of_the_target(self):
        model = Translator(Seq2SeqParams(**SMALL)).eval()
        sources, inputs = torch.randint(0, 900, (1, 9)), torch.randint(0, 900, (1, 20))
        changed = inputs.clone()
        changed[0, 12:] += 1
        before, after = model(sources, inputs), model(sources, changed)
        torch.testing.assert_close(before[:, :12], after[:, :12], rtol=0, atol=1e-5)
        assert not torch.allclose(before[:, 12:], after[:, 12:])

    def test_sees_each_piece_of_the_source(self):
        model = Translator(Seq2SeqParams(**SMALL)).eval()
        sources, inputs = torch.randint(0, 900, (1, 9)), torch.randint(0, 900, (1, 3))
        first = model(sources, inputs)[0, 0]
        for position in range(9):
            changed = sources.clone()
            changed[0, position] += 1
            assert not torch.equal(model(changed, inputs)[0, 0], first)

    @pytest.mark.parametrize(("shared", "num_tables"), [(False, 3), (True, 1)])
    def test_has_the_parameters_of_its_dimensions(self, shared, num_tables):
        # a table V C; attention 4 C^2 + 4 C, feed-forward 8 C^2 + 5 C, a norm 2 C;
        # an encoder layer has 1 attention and 2 norms, a decoder layer 2 and 3, each stack 1 norm
        params = Seq2SeqParams(**{**SMALL, "encoder_depth": 2}, shared_embedding=shared)
        count = sum(tensor.numel() for tensor in Translator(params).parameters())
        C, V = 16, 1_000
        encoder, decoder = 12 * C**2 + 13 * C, 16 * C**2 + 19 * C
        assert count == num_tables * V * C + 2 * encoder + decoder + 4 * C

    def test_equals_a_naive_one_without_padding(self):
        model = Translator(Seq2SeqParams(**SMALL)).eval()
        sources, inputs = torch.randint(0, 900, (2, 7)), torch.randint(0, 900, (2, 5))
        x = model.source_embedding(sources) * 4 + positions(7, 16, CPU)
        y = model.target_embedding(inputs) * 4 + positions(5, 16, CPU)
        layer = model.transformer.decoder.layers[0]
        memory = model.transformer.encoder(x)
        y = y + attended(layer.self_attn, layer.norm1(y), layer.norm1(y), causal=True)
        y = y + attended(layer.multihead_attn, layer.norm2(y), memory, causal=False)
        y = y + layer.linear2(layer.linear1(layer.norm3(y)).relu())
        wanted = model.head(model.transformer.decoder.norm(y))
        torch.testing.assert_close(model(sources, inputs), wanted)


def attended(attention, queries, others, *, causal: bool):
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    inputs = (queries, others, others)
    q, k, v = (x @ w.T + b for x, w, b in zip(inputs, weights, biases, strict=True))
    heads = []
    for q_head, k_head, v_head in zip(*(x.chunk(2, dim=-1) for x in (q, k, v)), strict=True):
        scores = q_head @ k_head.transpose(1, 2) / math.sqrt(8)
        if causal:
            later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        heads.append(scores.softmax(-1) @ v_head)
    return attention.out_proj(torch.cat(heads, dim=-1))


def test_positions_golden():
    # width 4: frequencies 1 and 1/100; sines, then cosines
    wanted = [[0, 0, 1, 1], [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)]]
    torch.testing.assert_close(positions(2, 4, CPU), torch.tensor(wanted))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"width": 0}, "width must be at least 1, found 0"),
        ({"encoder_depth": 0}, "encoder_depth must be at least 1, found 0"),
        ({"bucketing": 0}, "bucketing must be at least 1, found 0"),
        ({"vocabulary": 258}, "vocabulary must be at least 259, found 258"),
        ({"dropout": 1.0}, "dropout must be from 0 to below 1"),
        ({"width": 12, "heads": 8}, r"width 12 must be even and a multiple of heads \(8\)"),
    ],
)
def test_dimensions_that_make_no_model_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        Seq2SeqParams(**params)
