from functools import cache

import numpy as np
import pytest
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from objectives.texts import Texts
from objectives.tokenizer_encoding import around, encoded, encoded_by, opened

WORDS = ["hello world", "low lower lowest", "émile"] * 5
TEXTS = Texts.of(
    [b"  hello   world ", "émile \U0001f600 low".encode(), b"", b"\xff\xfehello", b"low\n" * 40_000]
)


@cache  # WordPiece is not trained twice alike
def word_pieces():
    """Lower-cases, takes accents off, drops blanks and puts marks around: as BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - no secret
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    marks = ["[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=marks, show_progress=False)
    tokenizer.train_from_iterator(WORDS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.enable_truncation(4)
    return tokenizer.to_str()


def byte_pieces():
    """Cuts the bytes of a character apart where it must: as GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(WORDS, trainer)
    return tokenizer.to_str()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("made", [word_pieces, byte_pieces])
def test_every_byte_belongs_to_one_token(made):
    tokens, num_bytes = encoded(opened(made()), TEXTS)
    starts = tokens.ends - tokens.lengths
    for start, end, length in zip(starts, tokens.ends, TEXTS.lengths, strict=True):
        assert num_bytes[start:end].sum() == length
    assert num_bytes.min() >= 0


def test_golden_bytes_of_each_token():
    texts = Texts.of([b"  hello   world "])
    tokens, num_bytes = encoded(opened(word_pieces()), texts)
    assert len(tokens[0]) == 2
    assert num_bytes.tolist() == [7, 9]  # blanks go with what follows, the last with what is last


def test_a_tokenizer_neither_cuts_nor_frames_here():
    tokenizer = opened(word_pieces())
    assert around(tokenizer) == {"before": [1], "after": [2]}
    assert around(opened(byte_pieces())) == {"before": [], "after": []}
    tokens, _ = encoded(tokenizer, Texts.of([b"low " * 10]))
    assert len(tokens[0]) == 10


def test_tokens_of_bytes_spell_the_text():
    tokenizer = opened(byte_pieces())
    tokens, _ = encoded(tokenizer, TEXTS)
    assert tokenizer.decode(tokens[1].tolist()) == "émile \U0001f600 low"


def test_a_process_does_the_same_and_puts_frames_of_no_bytes():
    texts = {"train": Texts.of([b"low", b"", b"hello"]), "held_out": Texts.of([b"hello low"])}
    found = encoded_by(word_pieces(), texts, framed=True, counted=["held_out"])
    bare, _ = encoded(opened(word_pieces()), texts["train"])
    assert [text.tolist() for text in found.texts["train"]] == [
        [1, *bare[0], 2],
        [1, 2],
        [1, *bare[2], 2],
    ]
    assert found.num_bytes["held_out"].tolist() == [0, 5, 4, 0]
    again = encoded_by(word_pieces(), texts, framed=False)
    assert np.array_equal(again.texts["train"].values, bare.values)
    assert (again.before, again.after) == ((1,), (2,))
