import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from objectives.images import open_images
from search.errors import InputError

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (12, 9, 7), dtype=np.uint8)
COLORED = RNG.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3
EVERY = np.arange(12)


def save(path: Path, pixels, mode=None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels, mode).save(path)
    return path


class TestDigits:
    def test_are_there_without_a_download(self):
        digits = open_images("digits", color=True)
        assert (len(digits.labels), digits.classes) == (1797, tuple("0123456789"))
        assert digits.labels[:10].tolist() == list(range(10))  # the first ten are in order
        assert digits.num_channels == 1

    def test_are_enlarged_between_their_pixels(self):
        digits = open_images("digits", color=True)
        small, large = (digits.read(np.array([0]), size) for size in (8, 28))
        assert (small.shape, large.shape) == ((1, 1, 8, 8), (1, 1, 28, 28))
        assert small.dtype == large.dtype == torch.uint8
        assert large.float().mean().item() == pytest.approx(small.float().mean().item(), rel=0.05)
        # 0 to 16 became 0 to 255; the first zero has 13 in its first row, fourth column
        assert small[0, 0, 0, 3] == round(13 * 255 / 16)


class TestArrays:
    def test_of_grey_and_of_colored_images(self, tmp_path):
        for pixels, channels in ((GREY, 1), (COLORED, 3)):
            np.savez(tmp_path / "a.npz", images=pixels, labels=LABELS)
            images = open_images(str(tmp_path / "a.npz"), color=True)
            assert (images.num_channels, images.classes) == (channels, ("0", "1", "2"))
            assert images.labels.tolist() == LABELS.tolist()
            assert images.read(EVERY, 16).shape == (12, channels, 16, 16)

    def test_come_back_as_they_were_at_their_own_size(self, tmp_path):
        np.savez(tmp_path / "a.npz", images=COLORED, labels=LABELS)
        found = open_images(str(tmp_path / "a.npz"), color=True).read(np.array([4, 2]), 8)
        assert np.array_equal(found.permute(0, 2, 3, 1).numpy(), COLORED[[4, 2]])

    def test_shrunken_ones_are_averaged(self, tmp_path):
        checkered = (np.indices((8, 8)).sum(axis=0) % 2 * 255).astype(np.uint8)
        np.savez(tmp_path / "a.npz", images=np.array([checkered] * 12), labels=LABELS)
        small = open_images(str(tmp_path / "a.npz"), color=True).read(np.array([0]), 4)
        assert small.float().sub(127.5).abs().max() < 16

    def test_without_color_are_as_bright(self, tmp_path):
        red, white = np.zeros((6, 4, 4, 3), np.uint8), np.full((6, 4, 4, 3), 200, np.uint8)
        red[..., 0] = 200
        np.savez(tmp_path / "a.npz", images=np.concatenate([red, white]), labels=LABELS)
        images = open_images(str(tmp_path / "a.npz"), color=False)
        assert images.num_channels == 1
        # 0.299 of 200
        assert images.read(np.array([0, 11]), 4)[:, 0, 0, 0].tolist() == [60, 200]

    def test_labels_may_be_words(self, tmp_path):
        words = np.array(["cat", "dog"] * 6)
        np.savez(tmp_path / "a.npz", images=GREY, labels=words)
        assert open_images(str(tmp_path / "a.npz"), color=True).classes == ("cat", "dog")

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"images": GREY}, r"labels.*write it with numpy\.savez"),
            ({"images": GREY / 255, "labels": LABELS}, r"found float64 of shape \(12, 9, 7\)"),
            ({"images": GREY[0], "labels": LABELS}, r"found uint8 of shape \(9, 7\)"),
            ({"images": COLORED[..., :2], "labels": LABELS}, r"shape \(12, 8, 8, 2\)"),
            ({"images": GREY, "labels": LABELS[:5]}, r"labels must be 12 .*shape \(5,\)"),
            ({"images": GREY, "labels": LABELS / 2}, "labels must be 12 .*found float64"),
            ({"images": GREY, "labels": LABELS * 0}, "at least 2 classes, found 1"),
        ],
    )
    def test_that_are_no_labelled_images_are_refused(self, tmp_path, arrays, message):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(InputError, match=f"a.npz: .*{message}"):
            open_images(str(tmp_path / "a.npz"), color=True)

    @pytest.mark.parametrize("content", [b"no arrays", b""])
    def test_a_file_that_numpy_cannot_read_is_refused(self, tmp_path, content):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(InputError, match=r"a\.npz: is no \.npz of arrays"):
            open_images(str(tmp_path / "a.npz"), color=True)

    def test_a_lone_array_is_refused(self, tmp_path):
        np.save(tmp_path / "a.npy", GREY)
        with pytest.raises(InputError, match=r"a\.npy: is no \.npz of arrays"):
            open_images(str(tmp_path / "a.npy"), color=True)


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path):
        for index, (grey, colored) in enumerate(zip(GREY, COLORED, strict=True)):
            save(tmp_path / "bird" / f"{index:02d}.png", grey)
            save(tmp_path / "ant" / "deeper" / f"{index:02d}.jpg", colored)
        (tmp_path / "bird" / "notes.txt").write_text("of the birds")
        (tmp_path / ".cache").mkdir()
        (tmp_path / "README").write_text("no class")
        return tmp_path

    def test_has_a_class_for_each_sub_folder(self, folder):
        images = open_images(str(folder), color=True)
        assert images.classes == ("ant", "bird")
        assert images.labels.tolist() == [0] * 12 + [1] * 12
        assert images.names[0] == "ant/deeper/00.jpg"
        assert images.names[-1] == "bird/11.png"

    def test_images_of_any_size_and_kind_become_alike(self, folder):
        images = open_images(str(folder), color=True)
        found = images.read(np.array([0, 12]), 9)
        assert (found.shape, found.dtype) == ((2, 3, 9, 9), torch.uint8)
        assert torch.equal(found[1, 0], found[1, 2])  # shades of grey in three channels
        assert open_images(str(folder), color=False).read(np.array([0]), 9).shape == (1, 1, 9, 9)

    def test_a_png_comes_back_as_it_was_at_its_own_size(self, tmp_path):
        for index in range(2):
            save(tmp_path / f"class{index}" / "0.png", COLORED[index])
        found = open_images(str(tmp_path), color=True).read(np.array([1]), 8)
        assert np.array_equal(found[0].permute(1, 2, 0).numpy(), COLORED[1])

    def test_its_provenance_does_not_hang_on_where_it_is(self, folder, tmp_path_factory):
        copy = tmp_path_factory.mktemp("copy") / "images"
        copy.symlink_to(folder)
        one, other = (open_images(str(path), color=True).provenance for path in (folder, copy))
        assert one["sha256_of_names_and_sizes"] == other["sha256_of_names_and_sizes"]
        assert one["num_images"] == 24
        save(folder / "bird" / "12.png", GREY[0])
        later = open_images(str(folder), color=True).provenance
        assert later["sha256_of_names_and_sizes"] != one["sha256_of_names_and_sizes"]

    def test_without_classes_is_refused(self, tmp_path):
        save(tmp_path / "0.png", GREY[0])
        with pytest.raises(InputError, match="at least 2 classes, found 0"):
            open_images(str(tmp_path), color=True)

    def test_a_class_without_images_is_refused(self, folder):
        (folder / "cow").mkdir()
        with pytest.raises(InputError, match=r"cow: holds no image files .*remove the folder"):
            open_images(str(folder), color=True)

    def test_a_broken_image_is_named(self, folder):
        whole = (folder / "bird" / "03.png").read_bytes()
        images = open_images(str(folder), color=True)
        for content in (b"", b"no image", whole[:-40]):
            (folder / "bird" / "03.png").write_bytes(content)
            with pytest.raises(InputError, match=r"03\.png: cannot be read as an image: .*remove"):
                images.read(np.array([15]), 8)

    @pytest.mark.parametrize(("mode", "kind"), [("I;16", np.uint16), ("F", np.float32)])
    def test_an_image_of_more_than_8_bits_is_not_cut_off(self, folder, mode, kind):
        deep = folder / "bird" / ("03.png" if mode != "F" else "03.tiff")
        (folder / "bird" / "03.png").unlink()
        Image.fromarray(np.full((4, 4), 1_000, kind)).save(deep)
        images = open_images(str(folder), color=True)
        with pytest.raises(
            InputError, match=rf"03\.\w+: .* pixels are of mode {mode}, not of 8 bits"
        ):
            images.read(np.array([15]), 8)


def test_a_path_to_nowhere_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"nowhere: there is no such file or folder .*digits"):
        open_images(str(tmp_path / "nowhere"), color=True)


def test_provenance_hashes_pixels_and_labels(tmp_path):
    np.savez(tmp_path / "a.npz", images=GREY, labels=LABELS)
    content = GREY.tobytes() + LABELS.astype(np.int64).tobytes()
    assert open_images(str(tmp_path / "a.npz"), color=True).provenance == {
        "images": str(tmp_path / "a.npz"),
        "num_images": 12,
        "num_classes": 3,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
