import pytest

from objectives.pairs import LANGUAGE_NAMES, PairCorpus, open_pairs
from search.errors import InputError

LIMITS = {"held_out_pairs": 512, "longest_bytes": 1_000}


def texts_of(corpus: PairCorpus, side: str) -> list[str]:
    held = (corpus.train, corpus.held_out)
    return [text.tobytes().decode() for pairs in held for text in getattr(pairs, side)]


def file_of(folder, text: str) -> str:
    (folder / "pairs.tsv").write_text(text, encoding="utf-8")
    return str(folder / "pairs.tsv")


class TestLanguageNames:
    def test_are_thousands_of_real_pairs(self):
        corpus = open_pairs(LANGUAGE_NAMES, **LIMITS)
        names = dict(zip(texts_of(corpus, "sources"), texts_of(corpus, "targets"), strict=True))
        assert len(names) > 2_600
        assert names["Chinese"] == "Chinois"
        assert names["Baltic languages"] == "Baltes, langues"
        assert len(corpus.held_out.sources) > 250

    def test_are_split_the_same_way_again(self):
        one, other = (open_pairs(LANGUAGE_NAMES, **LIMITS) for _ in range(2))
        assert one.provenance == other.provenance
        assert texts_of(one, "targets") == texts_of(other, "targets")

    def test_the_same_words_are_on_one_side(self):
        corpus = open_pairs(LANGUAGE_NAMES, **LIMITS)
        train, held_out = (
            {frozenset(text.tobytes().decode().replace(",", "").lower().split()) for text in each}
            for each in (corpus.train.sources, corpus.held_out.sources)
        )
        assert not train & held_out

    def test_none_stays_as_it_is(self):
        corpus = open_pairs(LANGUAGE_NAMES, **LIMITS)
        pairs = zip(texts_of(corpus, "sources"), texts_of(corpus, "targets"), strict=True)
        assert all(source != target for source, target in pairs)


class TestFile:
    def test_lines_are_pairs(self, tmp_path):
        lines = [f"one {index}\tun {index}\n" for index in range(20)]
        corpus = open_pairs(file_of(tmp_path, "\ufeff" + "\n".join(lines)), **LIMITS)
        assert sorted(texts_of(corpus, "sources")) == sorted(f"one {index}" for index in range(20))
        assert len(corpus.held_out.targets) == 2
        assert corpus.provenance["train_pairs"] == 18

    def test_of_one_source_the_first_pair_is_kept(self, tmp_path):
        corpus = open_pairs(file_of(tmp_path, "a\tx\nb\ty\na\tz\n"), **LIMITS)
        assert sorted(texts_of(corpus, "targets")) == ["x", "y"]
        assert corpus.provenance["num_repeated"] == 1

    def test_what_is_too_long_is_left_out(self, tmp_path):
        file = file_of(tmp_path, "a\tx\nb\ty\nlong\tz\nd\t\u00e9\u00e9\n")  # 4 bytes in UTF-8
        corpus = open_pairs(file, held_out_pairs=9, longest_bytes=3)
        assert sorted(texts_of(corpus, "targets")) == ["x", "y"]
        assert corpus.provenance["num_too_long"] == 2

    def test_no_more_are_judged_on_than_asked(self, tmp_path):
        file = file_of(tmp_path, "".join(f"{index}\tx\n" for index in range(100)))
        corpus = open_pairs(file, held_out_pairs=4, longest_bytes=9)
        assert (len(corpus.held_out.sources), len(corpus.train.sources)) == (4, 90)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a\tb\nc\n", r"pairs\.tsv: line 2: .* found 1 cell, 1 of them with text"),
            ("a\tb\tc\n", r"line 1: .* found 3 cells"),
            ("a\t \n", r"line 1: .* found 2 cells, 1 of them with text"),
            ("", r"too few pairs, found 0"),
            ("a\tb\na\tb\n", r"too few pairs, found 1"),
            ("a b\tx\nb a\ty\n", r"too few pairs, found 2"),
        ],
    )
    def test_what_makes_no_pairs_is_refused(self, tmp_path, text, message):
        with pytest.raises(InputError, match=message):
            open_pairs(file_of(tmp_path, text), **LIMITS)

    def test_a_missing_file_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"cannot be read: No such file .*language-names"):
            open_pairs(str(tmp_path / "none.tsv"), **LIMITS)

    def test_other_encodings_are_refused(self, tmp_path):
        (tmp_path / "latin.tsv").write_bytes("a\t\u00e9\n".encode("latin-1"))
        with pytest.raises(InputError, match=r"is not UTF-8 text: .* at byte 2"):
            open_pairs(str(tmp_path / "latin.tsv"), **LIMITS)
