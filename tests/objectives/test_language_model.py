import math
from collections.abc import Iterator
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from objectives.language_model import (
    Attention,
    Decoder,
    LanguageModel,
    LanguageModelParams,
    rotary_turns,
    rotated,
)
from search.contract import check_objective
from search.errors import InputError
from search.metric import Goal
from search.objective import Split, load_objective

CPU = torch.device("cpu")
SMALL = LanguageModelParams(width=16, heads=2, depth=2)


@pytest.fixture(scope="module")
def objective() -> LanguageModel:
    return LanguageModel(held_out_tokens=2_000, evaluation_context=64)


@pytest.fixture(autouse=True)
def seeded():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


class TestObjective:
    def test_is_found_by_its_path(self):
        assert load_objective("objectives.language_model:LanguageModel") is LanguageModel

    def test_lower_bits_are_better(self):
        assert [(m.name, m.goal) for m in LanguageModel.metrics] == [("bits_per_byte", Goal.MIN)]

    def test_trains_on_its_sequence_length_and_is_judged_on_another(self, objective):
        params = {"sequence_length": 16, "batch_size": 8, "micro_batch_size": 2}
        assert objective.batch(params, Split.TRAIN)["inputs"].shape == (2, 16)
        assert objective.batch(params, Split.HELD_OUT)["inputs"].shape == (4, 64)
        assert objective.tokens_per_sample(params) == 16

    def test_names_its_data(self, objective):
        assert objective.provenance["corpus"] == "python-stdlib"

    def test_reads_a_file_of_the_user(self, tmp_path):
        (tmp_path / "mine.txt").write_text("all work and no play " * 100)
        mine = LanguageModel(corpus=str(tmp_path / "mine.txt"))
        assert mine.provenance["train_bytes"] == 1_890


@pytest.fixture(scope="module")
def of_words(tmp_path_factory) -> Iterator[LanguageModel]:
    """Text of which a vocabulary can be learned in no time, in a cache folder of its own."""
    folder = tmp_path_factory.mktemp("words")
    lines = (f"{number} times {number} is {number**2}" for number in range(2_000))
    (folder / "text.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield LanguageModel(corpus=str(folder / "text.txt"), evaluation_context=32)


class TestVocabulary:
    PIECES: ClassVar = {"vocabulary": 300, "sequence_length": 16, "batch_size": 4}

    def test_of_256_is_the_bytes_and_batches_say_nothing_of_them(self, of_words):
        batch = next(iter(of_words.data({}, Split.HELD_OUT, seed=0)))
        assert batch.keys() == {"inputs", "targets"}
        assert batch["inputs"][0, :6].tolist() == of_words.corpus.held_out[:6].tolist()

    def test_pieces_stand_for_all_bytes_but_those_of_the_first(self, of_words):
        batches = list(of_words.data(self.PIECES, Split.HELD_OUT, seed=0))
        first = of_words._tokenized(300).piece_bytes[batches[0]["inputs"][0, 0]]
        num_bytes = sum(int(batch["num_bytes"].sum()) for batch in batches)
        assert num_bytes == len(of_words.corpus.held_out) - first
        num_pieces = sum(batch["targets"].numel() for batch in batches)
        assert num_pieces < 0.6 * num_bytes

    def test_bits_of_a_uniform_model(self, of_words):
        model = of_words.model(self.PIECES)
        nn.init.zeros_(model.head.weight)
        batches = list(of_words.data(self.PIECES, Split.HELD_OUT, seed=0))
        num_pieces = sum(map(of_words.num_tokens, batches))
        num_bytes = sum(int(batch["num_bytes"].sum()) for batch in batches)
        found = of_words.evaluate(model, batches)["bits_per_byte"]
        assert found == pytest.approx(math.log2(300) * num_pieces / num_bytes, rel=1e-6)

    def test_training_reads_pieces_of_what_is_trained_on(self, of_words):
        batch = next(iter(of_words.data(self.PIECES, Split.TRAIN, seed=0, num_tokens=64)))
        text = of_words._tokenized(300).decoded(batch["inputs"][0])
        assert text in of_words.corpus.train.tobytes()
        assert len(text) > 16

    @pytest.mark.parametrize("change", [{}, {"micro_batch_size": 2}, {"vocabulary": 256}])
    def test_keeps_the_contract(self, of_words, change):
        check_objective(of_words, {**self.PIECES, "width": 16, "heads": 2, "depth": 1, **change})

    def test_has_a_row_in_both_tables_for_each_piece(self, of_words):
        small, large = (
            sum(tensor.numel() for tensor in of_words.model({"vocabulary": size}).parameters())
            for size in (256, 300)
        )
        assert large - small == 2 * 44 * 64

    def test_that_the_text_cannot_fill_is_refused(self, of_words):
        with pytest.raises(InputError, match="vocabulary 90000 is more than these texts give"):
            of_words.data({"vocabulary": 90_000}, Split.TRAIN, seed=0)


@pytest.fixture(scope="module")
def of_files(tmp_path_factory) -> LanguageModel:
    folder = tmp_path_factory.mktemp("files")
    for number in range(60):
        (folder / f"{number}.txt").write_text(f"{number} " * (1 + number % 9))
    return LanguageModel(corpus=str(folder), evaluation_context=8)


class TestPacking:
    PACKED: ClassVar = {"packing": True, "sequence_length": 32, "batch_size": 4}

    @pytest.mark.parametrize(
        "change", [{}, {"micro_batch_size": 2}, {"activation_checkpointing": True}]
    )
    def test_keeps_the_contract(self, of_files, change):
        check_objective(of_files, {**self.PACKED, "width": 16, "heads": 2, "depth": 1, **change})

    def test_windows_hold_documents_whole(self, of_files):
        batch = next(iter(of_files.data(self.PACKED, Split.TRAIN, seed=0)))
        texts = {f"{number} " * (1 + number % 9) for number in range(60)}
        for inputs, numbers in zip(batch["inputs"], batch["documents"], strict=True):
            for number in range(int(numbers.max()) + 1):
                part = bytes(inputs[numbers == number].tolist()).decode()
                assert any(text.startswith(part) for text in texts)

    def test_the_loss_is_that_of_each_document_alone(self, of_files):
        model = of_files.model({})
        batch = next(iter(of_files.data(self.PACKED, Split.TRAIN, seed=0)))
        total = torch.zeros(())
        for inputs, targets, numbers in zip(*batch.values(), strict=True):
            for number in range(int(numbers.max()) + 1):
                own = numbers == number
                logits = model(inputs[own][None])[0]
                total += functional.cross_entropy(logits, targets[own], reduction="sum")
        found = of_files.loss(model, batch) * of_files.num_tokens(batch)
        torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-4)

    def test_the_loss_in_chunks_is_the_same(self, of_files):
        batch = list(of_files.data(self.PACKED, Split.TRAIN, seed=0))[-1]
        assert (batch["targets"] < 0).any()
        model = of_files.model({})
        whole = of_files.loss(model, batch)
        model.loss_chunks = 3
        torch.testing.assert_close(of_files.loss(model, batch), whole)

    def test_without_it_batches_are_as_they_were(self, of_files):
        batch = next(iter(of_files.data({"sequence_length": 8}, Split.TRAIN, seed=0)))
        assert batch.keys() == {"inputs", "targets"}


class TestBitsPerByte:
    def test_of_a_uniform_model_are_8(self, objective):
        model = objective.model({})
        nn.init.zeros_(model.head.weight)  # 256 equal logits: log2(256) bits
        batches = objective.data({}, Split.HELD_OUT, seed=0)
        assert objective.evaluate(model, batches) == {"bits_per_byte": pytest.approx(8, rel=1e-6)}

    def test_weigh_each_byte_alike_however_they_are_batched(self):
        torch.manual_seed(0)
        model = Decoder(SMALL)
        values = []
        for held_out in (1_000, 1_000):
            judged = LanguageModel(held_out_tokens=held_out, evaluation_context=48)
            batches = list(judged.data({}, Split.HELD_OUT, seed=0))
            if values:  # one window at a time
                batches = [
                    {name: row[None] for name, row in zip(batch, rows, strict=True)}
                    for batch in batches
                    for rows in zip(*batch.values(), strict=True)
                ]
            values.append(judged.evaluate(model, batches)["bits_per_byte"])
        assert values[0] == pytest.approx(values[1], rel=1e-6)

    def test_are_the_loss_in_bits(self, objective):
        model = objective.model({})
        batch = objective.batch({}, Split.HELD_OUT)
        bits = objective.evaluate(model, [batch])["bits_per_byte"]
        assert bits == pytest.approx(objective.loss(model, batch).item() / math.log(2))

    def test_are_not_rounded_to_bf16(self, objective):
        model = objective.model({}).to(torch.bfloat16)
        assert objective.loss(model, objective.batch({}, Split.HELD_OUT)).dtype == torch.float32


class TestDecoder:
    @pytest.mark.parametrize("length", [1, 2, 17, 1_000])
    def test_reads_any_length(self, length):
        logits_BTV = Decoder(SMALL)(torch.zeros(2, length, dtype=torch.int64))
        assert logits_BTV.shape == (2, length, 256)
        assert logits_BTV.isfinite().all()

    def test_sees_no_later_byte(self):
        model = Decoder(SMALL)
        bytes_BT = torch.randint(0, 256, (1, 20))
        changed_BT = bytes_BT.clone()
        changed_BT[0, 12:] = (changed_BT[0, 12:] + 1) % 256
        before, after = model(bytes_BT), model(changed_BT)
        torch.testing.assert_close(before[:, :12], after[:, :12], rtol=0, atol=1e-6)
        assert not torch.allclose(before[:, 12:], after[:, 12:])

    def test_sees_each_earlier_byte(self):
        model = Decoder(SMALL)
        bytes_BT = torch.randint(0, 256, (1, 20))
        last = model(bytes_BT)[0, -1]
        for position in range(20):
            changed_BT = bytes_BT.clone()
            changed_BT[0, position] = (changed_BT[0, position] + 1) % 256
            assert not torch.equal(model(changed_BT)[0, -1], last)

    def test_has_the_parameters_of_its_dimensions(self):
        # embedding and head 2 x 256 C, last norm 2 C, a block 12 C^2 + 13 C:
        # qkv 3 C^2 + 3 C, output C^2 + C, feed-forward 8 C^2 + 5 C, two norms 4 C
        count = sum(tensor.numel() for tensor in Decoder(SMALL).parameters())
        assert count == 512 * 16 + 32 + 2 * (12 * 256 + 13 * 16)

    def test_begins_near_uniform(self, objective):
        loss = objective.loss(objective.model({}), objective.batch({}, Split.HELD_OUT)).item()
        assert loss == pytest.approx(math.log(256), rel=0.05)

    def test_dropout_acts_in_training_alone(self):
        model = Decoder(LanguageModelParams(width=16, heads=2, dropout=0.5))
        bytes_BT = torch.zeros(1, 8, dtype=torch.int64)
        assert not torch.equal(model(bytes_BT), model(bytes_BT))
        model.eval()
        assert torch.equal(model(bytes_BT), model(bytes_BT))


class TestRotation:
    @given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400))
    def test_a_product_depends_on_the_distance_alone(self, one, other, shift):
        turns = rotary_turns(801, 8, CPU)
        query, key = torch.randn(2, 8).double().unbind()
        queries, keys = (rotated(vector.expand(801, 8), *turns) for vector in (query, key))
        before = queries[one] @ keys[other]
        after = queries[one + shift] @ keys[other + shift]
        torch.testing.assert_close(before, after, rtol=0, atol=1e-3)

    def test_the_first_position_is_not_turned(self):
        x_TD = torch.randn(3, 8)
        turned_TD = rotated(x_TD, *rotary_turns(3, 8, CPU))
        assert torch.equal(turned_TD[0], x_TD[0])
        assert not torch.allclose(turned_TD[1], x_TD[1])

    def test_keeps_lengths(self):
        x_TD = torch.randn(50, 8)
        turned_TD = rotated(x_TD, *rotary_turns(50, 8, CPU))
        torch.testing.assert_close(turned_TD.norm(dim=-1), x_TD.norm(dim=-1))

    def test_golden(self):
        # D = 2: one pair, turned by 1 radian at position 1: (1, 0) becomes (cos 1, sin 1)
        turned_TD = rotated(torch.tensor([[1.0, 0.0]] * 2), *rotary_turns(2, 2, CPU))
        wanted = torch.tensor([[1.0, 0.0], [0.5403023, 0.8414710]])
        torch.testing.assert_close(turned_TD, wanted)

    def test_keeps_the_dtype_it_computes_in(self):
        turned = rotated(torch.randn(3, 8).bfloat16(), *rotary_turns(3, 8, CPU))
        assert turned.dtype == torch.bfloat16


def test_attention_equals_a_naive_one():
    attention = Attention(SMALL)
    x_BTC = torch.randn(2, 9, 16)
    turns = rotary_turns(9, 8, CPU)
    q_BTC, k_BTC, v_BTC = attention.queries_keys_values(x_BTC).split(16, dim=-1)
    heads = []
    for head in range(2):
        q, k, v = (part[..., 8 * head : 8 * head + 8] for part in (q_BTC, k_BTC, v_BTC))
        scores_BTT = rotated(q, *turns) @ rotated(k, *turns).transpose(1, 2) / math.sqrt(8)
        later = torch.ones(9, 9, dtype=torch.bool).triu(1)
        heads.append(scores_BTT.masked_fill(later, -math.inf).softmax(-1) @ v)
    wanted = attention.output(torch.cat(heads, dim=-1))
    torch.testing.assert_close(attention(x_BTC, *turns), wanted)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"width": 0}, "width must be at least 1, found 0"),
        ({"depth": 0}, "depth must be at least 1, found 0"),
        ({"sequence_length": 0}, "sequence_length must be at least 1, found 0"),
        ({"heads": 0}, "heads must be at least 1, found 0"),
        ({"vocabulary": 255}, "vocabulary must be at least 256, the bytes, found 255"),
        ({"dropout": 1.0}, "dropout must be from 0 to below 1"),
        ({"width": 12, "heads": 4}, r"width 12 must be a multiple of twice heads \(4\)"),
    ],
)
def test_dimensions_that_make_no_model_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        LanguageModelParams(**params)
