import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from objectives.cleaning import Cleaning
from objectives.data import PYTHON_STDLIB, Corpus, open_corpus
from objectives.windows import training_windows
from search.errors import InputError


@pytest.fixture(scope="module")
def stdlib() -> Corpus:
    return open_corpus(PYTHON_STDLIB, held_out_tokens=65_536)


class TestPythonStdlib:
    def test_is_python_of_some_size(self, stdlib):
        assert len(stdlib.train) > 5_000_000
        assert len(stdlib.held_out) == 65_536
        assert b"def " in stdlib.train.tobytes()

    def test_is_the_same_when_opened_again(self, stdlib):
        again = open_corpus(PYTHON_STDLIB, held_out_tokens=65_536)
        assert again.provenance == stdlib.provenance
        assert np.array_equal(again.train, stdlib.train)
        assert np.array_equal(again.held_out, stdlib.held_out)

    def test_held_out_files_are_not_trained_on(self, stdlib):
        train, held_out = stdlib.train.tobytes(), stdlib.held_out.tobytes()
        pieces = [held_out[at : at + 200] for at in range(0, 65_000, 500)]
        assert (
            sum(piece in train for piece in pieces) < len(pieces) // 8
        )  # wave.py has a copy of chunk.py

    def test_the_split_does_not_depend_on_how_much_is_judged_on(self, stdlib):
        fewer = open_corpus(PYTHON_STDLIB, held_out_tokens=1_000)
        assert np.array_equal(fewer.held_out, stdlib.held_out[:1_000])
        assert np.array_equal(fewer.train, stdlib.train)

    def test_its_provenance_names_what_was_read(self, stdlib):
        assert stdlib.provenance["corpus"] == "python-stdlib"
        assert stdlib.provenance["python"] == sys.version.split()[0]
        assert len(stdlib.provenance["sha256"]) == 64
        assert stdlib.provenance["train_bytes"] == len(stdlib.train)


class TestFolder:
    def test_holds_out_whole_files(self, tmp_path):
        texts = {f"{index:02d}.txt": bytes([97 + index]) * 10 for index in range(20)}
        for name, text in texts.items():
            (tmp_path / name).write_bytes(text)
        corpus = open_corpus(str(tmp_path), held_out_tokens=1_000)
        assert len(corpus.held_out) == 20  # 2 files of 20, 10 bytes each
        assert not set(corpus.held_out) & set(corpus.train)
        everything = b"".join(texts[name] for name in sorted(texts))
        assert corpus.provenance == {
            "corpus": str(tmp_path),
            "num_binary_files": 0,
            "num_files": 20,
            "sha256": hashlib.sha256(everything).hexdigest(),
            "train_bytes": 180,
            "held_out_bytes": 20,
        }

    def test_does_not_depend_on_where_the_folder_is(self, tmp_path):
        for place in ("one", "two"):
            for index in range(12):
                path = tmp_path / place / f"chapter{index % 3}" / f"{index}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"text {index}\n")
        one, two = (open_corpus(str(tmp_path / p), held_out_tokens=99) for p in ("one", "two"))
        assert np.array_equal(one.train, two.train)
        assert np.array_equal(one.held_out, two.held_out)

    def test_leaves_out_binary_hidden_and_empty_files(self, tmp_path):
        for name in ("a.txt", "b.txt", ".hidden", ".git/config"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("x" * 10)
        (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
        (tmp_path / "empty.txt").touch()
        corpus = open_corpus(str(tmp_path), held_out_tokens=99)
        assert corpus.provenance["num_files"] == 2
        assert corpus.provenance["num_binary_files"] == 1
        assert len(corpus.train) == len(corpus.held_out) == 10

    def test_of_one_file_holds_out_its_end(self, tmp_path):
        (tmp_path / "only.txt").write_bytes(bytes(range(1, 101)))
        corpus = open_corpus(str(tmp_path), held_out_tokens=99)
        assert corpus.held_out.tolist() == list(range(91, 101))

    @pytest.mark.parametrize("content", [None, b"", b"\0\1\2"])
    def test_without_text_is_refused(self, tmp_path, content):
        if content is not None:
            (tmp_path / "file").write_bytes(content)
        with pytest.raises(InputError, match="no text was found in this folder"):
            open_corpus(str(tmp_path), held_out_tokens=99)

    def test_a_link_to_nowhere_and_a_pipe_are_left_out(self, tmp_path):
        for name in ("a", "b"):
            (tmp_path / name).write_text("some text")
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        os.mkfifo(tmp_path / "pipe")
        assert open_corpus(str(tmp_path), held_out_tokens=99).provenance["num_files"] == 2


class TestSingleFile:
    @pytest.mark.parametrize("name", ["text.txt", "tokens.bin", "tokens.npy"])
    def test_holds_out_its_last_tenth(self, tmp_path, name):
        path = tmp_path / name
        tokens = np.frombuffer(bytes(index % 255 + 1 for index in range(1_000)), dtype=np.uint8)
        np.save(path, tokens) if name.endswith("npy") else path.write_bytes(tokens.tobytes())
        corpus = open_corpus(str(path), held_out_tokens=65_536)
        assert np.array_equal(corpus.train, tokens[:900])
        assert np.array_equal(corpus.held_out, tokens[900:])
        assert corpus.provenance["sha256"] == hashlib.sha256(tokens.tobytes()).hexdigest()

    def test_holds_out_no_more_than_asked(self, tmp_path):
        (tmp_path / "text.txt").write_text("x" * 1_000)
        corpus = open_corpus(str(tmp_path / "text.txt"), held_out_tokens=30)
        assert (len(corpus.train), len(corpus.held_out)) == (970, 30)

    @pytest.mark.parametrize("name", ["tokens.bin", "tokens.npy"])
    def test_an_array_is_memory_mapped(self, tmp_path, name):
        path = tmp_path / name
        np.save(path, np.zeros(100, np.uint8)) if "npy" in name else path.write_bytes(bytes(100))
        corpus = open_corpus(str(path), held_out_tokens=99)
        assert isinstance(corpus.train, np.memmap)

    def test_a_wider_array_gives_the_same_windows(self, tmp_path):
        for dtype in ("uint8", "uint16", "int64"):
            np.save(tmp_path / f"{dtype}.npy", np.arange(200, dtype=dtype))
        batches = [
            next(training_windows(corpus, context=8, num_samples=4, num_tokens=None, seed=0))
            for corpus in (
                open_corpus(str(path), held_out_tokens=99) for path in tmp_path.iterdir()
            )
        ]
        assert all(torch.equal(batch["inputs"], batches[0]["inputs"]) for batch in batches)

    def test_home_is_understood(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "text.txt").write_text("x" * 100)
        assert len(open_corpus("~/text.txt", held_out_tokens=99).train) == 90


class TestRefusal:
    def test_missing(self, tmp_path):
        path = tmp_path / "nowhere.txt"
        with pytest.raises(InputError, match=r"nowhere\.txt: there is no such file or folder"):
            open_corpus(str(path), held_out_tokens=99)

    def test_empty(self, tmp_path):
        for name in ("a.txt", "a.bin", "a.npy"):
            (tmp_path / name).touch()
            with pytest.raises(InputError, match=f"{name}: is empty"):
                open_corpus(str(tmp_path / name), held_out_tokens=99)

    def test_neither_file_nor_folder(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match="pipe: is neither a file nor a folder"):
            open_corpus(str(tmp_path / "pipe"), held_out_tokens=99)

    def test_binary_named_as_text(self, tmp_path):
        (tmp_path / "a.txt").write_bytes(bytes(100))
        with pytest.raises(InputError, match=r"is binary, not text .*name it \.bin"):
            open_corpus(str(tmp_path / "a.txt"), held_out_tokens=99)

    @pytest.mark.parametrize("length", [1, 2, 19])
    def test_too_small_to_split(self, tmp_path, length):
        (tmp_path / "a.txt").write_text("x" * length)
        with pytest.raises(InputError, match="too small to be split"):
            open_corpus(str(tmp_path / "a.txt"), held_out_tokens=99)

    @pytest.mark.parametrize(
        ("array", "found"),
        [
            (np.zeros((10, 10), np.uint8), r"found uint8 of shape \(10, 10\)"),
            (np.zeros(100, np.float32), "found float32"),
            (np.zeros(100, bool), "found bool"),
            (np.full(100, 300, np.uint16), "found 300 to 300"),
            (np.arange(-1, 99), "found -1 to 98"),
            (np.array(3), r"found int64 of shape \(\)"),
        ],
    )
    def test_array_that_is_not_of_bytes(self, tmp_path, array, found):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(InputError, match=found):
            open_corpus(str(tmp_path / "a.npy"), held_out_tokens=99)

    @pytest.mark.parametrize("content", [b"not an array at all", b"\x93NUMPY\x01\x00v\x00{'descr"])
    def test_array_that_numpy_cannot_read(self, tmp_path, content):
        (tmp_path / "a.npy").write_bytes(content)
        with pytest.raises(InputError, match="is no NumPy array"):
            open_corpus(str(tmp_path / "a.npy"), held_out_tokens=99)

    def test_an_array_of_objects_is_not_unpickled(self, tmp_path):
        np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
        with pytest.raises(InputError, match="is no NumPy array"):
            open_corpus(str(tmp_path / "a.npy"), held_out_tokens=99)

    def test_nothing_to_be_judged_on(self):
        with pytest.raises(InputError, match="held_out_tokens must be at least 2, found 1"):
            open_corpus(PYTHON_STDLIB, held_out_tokens=1)

    @pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs POSIX permissions")
    @pytest.mark.parametrize("name", ["a.txt", "a.bin", "a.npy", "folder"])
    def test_unreadable(self, tmp_path, name):
        path = tmp_path / name
        path.mkdir() if name == "folder" else path.write_text("x" * 100)
        path.chmod(0)
        user = os.geteuid()
        try:
            if user == 0:  # root may read anything
                os.seteuid(65_534)
            with pytest.raises(InputError, match="cannot be read: Permission denied"):
                open_corpus(str(path), held_out_tokens=99)
        finally:
            os.seteuid(user)
            path.chmod(0o700)


def test_a_relative_path_is_looked_for_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("x" * 100)
    assert open_corpus("text.txt", held_out_tokens=99).name == "text.txt"


class TestCleaning:
    def test_documents_are_cleaned_and_compared_before_they_are_split(self, tmp_path):
        for index in range(20):
            (tmp_path / f"{index:02d}.txt").write_text(f"text {index}  \r\n", newline="")
        (tmp_path / "copy.txt").write_text("text 3\n")
        cleaning = Cleaning(clean=True, duplicates="exact")
        corpus = open_corpus(str(tmp_path), held_out_tokens=99, cleaning=cleaning)
        assert corpus.provenance["num_repeated_files"] == 1
        assert corpus.provenance["bytes_saved_by_cleaning"] == 20 * 3
        assert corpus.provenance["bytes_saved_by_deduplication"] == len("text 3\n")
        assert corpus.provenance["num_files"] == 20
        text = corpus.train.tobytes() + corpus.held_out.tobytes()
        assert sorted(text.decode().split("\n"))[1:] == sorted(f"text {n}" for n in range(20))

    def test_the_standard_library_repeats_little(self):
        cleaning = Cleaning(duplicates="exact")
        corpus = open_corpus(PYTHON_STDLIB, held_out_tokens=999, cleaning=cleaning)
        assert corpus.provenance["bytes_saved_by_deduplication"] >= 0
        assert corpus.provenance["num_files"] > 300

    def test_a_file_has_no_documents(self, tmp_path):
        (tmp_path / "text.txt").write_text("text " * 100)
        with pytest.raises(InputError, match="has no documents to clean or to compare"):
            open_corpus(
                str(tmp_path / "text.txt"), held_out_tokens=99, cleaning=Cleaning(clean=True)
            )
