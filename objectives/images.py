"""Labelled images: the digits that scikit-learn carries, and the folders and arrays of the user.

Tensors carry their shape: B samples, C channels, H and W pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from objectives.samples import Indices
from search.errors import InputError

DIGITS = "digits"

_Pixels = npt.NDArray[np.uint8]
_Read = Callable[[Indices, int], Tensor]

_GREY_WEIGHTS = (0.299, 0.587, 0.114)
"""Of red, green and blue. Source: ITU-R BT.601, section 2.5.1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Images:
    """Labelled images. `labels` index `classes`; `names` tell an image apart from the others.

    `read(indices, size)` gives images as uint8 (B, C, size, size), stretched to a square.
    """

    name: str
    classes: tuple[str, ...]
    labels: Indices
    names: tuple[str, ...]
    num_channels: int
    read: _Read
    provenance: Mapping[str, str | int]


def open_images(images: str, *, color: bool) -> Images:
    """The images of that name or path.

    Args:
        images: `digits`, the path of a folder with a sub-folder of image files for each class, or
            of an `.npz` with `images`, uint8 (N, H, W) or (N, H, W, 3), and `labels`, (N,).
        color: whether to keep red, green and blue, where there are any; else shades of grey.

    Raises:
        InputError: when there are no such images, or they cannot be read.
    """
    path = Path(images).expanduser()
    try:
        if images == DIGITS:
            return _digits()
        if path.is_dir():
            return _folder(path, color=color)
        return _array_file(path, color=color)
    except OSError as error:
        msg = f"{error.filename or path}: cannot be read: {error.strerror} (check its permissions)"
        raise InputError(msg) from error


def _digits() -> Images:
    """1,797 handwritten digits of 8 by 8 pixels, 0 to 16.

    Source: Alpaydin and Kaynak 1998, UCI "Optical Recognition of Handwritten Digits", test set.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    found = load_digits()
    pixels = np.round(found.images * (255 / 16)).astype(np.uint8)
    return _of_arrays(DIGITS, pixels[..., None], found.target, color=False)


def _of_arrays(name: str, pixels_BHWC: _Pixels, labels: npt.NDArray[Any], *, color: bool) -> Images:
    if pixels_BHWC.shape[-1] == 3 and not color:
        pixels_BHWC = _grey(pixels_BHWC)
    classes, indices = np.unique(labels, return_inverse=True)
    _require_classes(name, len(classes))
    pixels_BCHW = torch.from_numpy(np.ascontiguousarray(pixels_BHWC.transpose(0, 3, 1, 2)))
    digest = hashlib.sha256(pixels_BCHW.numpy().data)
    digest.update(np.ascontiguousarray(indices).data)
    return Images(
        name=name,
        classes=tuple(map(str, classes)),
        labels=indices.astype(np.int64),
        names=tuple(map(str, range(len(indices)))),
        num_channels=pixels_BCHW.shape[1],
        read=partial(_from_array, pixels_BCHW),
        provenance={
            "images": name,
            "num_images": len(indices),
            "num_classes": len(classes),
            "sha256": digest.hexdigest(),
        },
    )


def _grey(pixels_BHWC: _Pixels) -> _Pixels:
    grey_BHW = np.zeros(pixels_BHWC.shape[:-1], dtype=np.float32)
    for index, weight in enumerate(_GREY_WEIGHTS):
        grey_BHW += np.float32(weight) * pixels_BHWC[..., index]
    return np.round(grey_BHW).astype(np.uint8)[..., None]


def _from_array(pixels_BCHW: Tensor, indices: Indices, size: int) -> Tensor:
    chosen_BCHW = pixels_BCHW[torch.from_numpy(indices)]
    if chosen_BCHW.shape[2:] == (size, size):
        return chosen_BCHW
    shrinks = max(chosen_BCHW.shape[2:]) > size
    return functional.interpolate(
        chosen_BCHW, size=(size, size), mode="bilinear", antialias=shrinks, align_corners=False
    )


def _require_classes(place: str, num_classes: int) -> None:
    if num_classes < 2:
        msg = f"{place}: must hold images of at least 2 classes, found {num_classes} (add another)"
        raise InputError(msg)


def _array_file(path: Path, *, color: bool) -> Images:
    if not path.is_file():
        msg = (
            f"{path}: there is no such file or folder in {Path.cwd()} (correct the path, or use "
            f"{DIGITS}, which scikit-learn carries)"
        )
        raise InputError(msg)
    pixels, labels = _arrays(path)
    if (
        pixels.dtype != np.uint8
        or pixels.ndim not in (3, 4)
        or pixels.shape[3:] not in ((), (1,), (3,))
    ):
        msg = (
            f"{path}: images must be uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3), found "
            f"{pixels.dtype} of shape {pixels.shape} (save (255 * images).astype('uint8'))"
        )
        raise InputError(msg)
    if labels.shape != pixels.shape[:1] or labels.dtype.kind not in "iuU":
        msg = (
            f"{path}: labels must be {len(pixels)} whole numbers or words, one for each image, "
            f"found {labels.dtype} of shape {labels.shape}"
        )
        raise InputError(msg)
    return _of_arrays(str(path), pixels.reshape(*pixels.shape[:3], -1), labels, color=color)


def _arrays(path: Path) -> tuple[_Pixels, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return file["images"], file["labels"]
    except KeyError as error:
        msg = f"{path}: {error.args[0]} (write it with numpy.savez(file, images=..., labels=...))"
        raise InputError(msg) from error
    except (ValueError, EOFError, TypeError, AttributeError) as error:
        msg = f"{path}: is no .npz of arrays ({error}) (write it with numpy.savez)"
        raise InputError(msg) from error


def _folder(root: Path, *, color: bool) -> Images:
    from PIL import Image

    Image.init()
    known = frozenset(suffix for suffix, kind in Image.EXTENSION.items() if kind in Image.OPEN)
    classes = sorted(entry.name for entry in root.iterdir() if _is_class(entry))
    _require_classes(str(root), len(classes))
    files, labels = [], []
    for label, name in enumerate(classes):
        found = sorted(file for file in (root / name).rglob("*") if file.suffix.lower() in known)
        if not found:
            msg = f"{root / name}: holds no image files (add some, or remove the folder)"
            raise InputError(msg)
        files += found
        labels += [label] * len(found)
    names = tuple(file.relative_to(root).as_posix() for file in files)
    return Images(
        name=str(root),
        classes=tuple(classes),
        labels=np.array(labels, dtype=np.int64),
        names=names,
        num_channels=3 if color else 1,
        read=partial(_from_files, files, "RGB" if color else "L"),
        provenance={
            "images": str(root),
            "num_images": len(files),
            "num_classes": len(classes),
            "sha256_of_names_and_sizes": _listing_hash(names, files),
        },
    )


def _is_class(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _listing_hash(names: Iterable[str], files: Iterable[Path]) -> str:
    """To read every image for a hash of its content could take minutes."""
    lines = (f"{name} {file.stat().st_size}\n" for name, file in zip(names, files, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _from_files(files: Sequence[Path], mode: str, indices: Indices, size: int) -> Tensor:
    num_channels = 3 if mode == "RGB" else 1
    pixels_BHWC = np.empty((len(indices), size, size, num_channels), dtype=np.uint8)
    for row, index in enumerate(indices):
        pixels_BHWC[row] = _decoded(files[index], mode, size).reshape(size, size, num_channels)
    return torch.from_numpy(pixels_BHWC).permute(0, 3, 1, 2)


_DEEP = ("I", "F")
"""Pixels of 16 and more bits, whose range nobody tells: Pillow would cut them off at 255."""


def _refuse_deep(mode: str) -> None:
    if mode.startswith(_DEEP):
        msg = f"its pixels are of mode {mode}, not of 8 bits"
        raise ValueError(msg)


def _decoded(file: Path, mode: str, size: int) -> _Pixels:
    """One image file; a JPEG is decoded no larger than need be."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            _refuse_deep(image.mode)
            image.draft(mode, (size, size))
            resized = image.convert(mode).resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(resized)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        msg = f"{file}: cannot be read as an image: {error} (save it anew, or remove it)"
        raise InputError(msg) from error
