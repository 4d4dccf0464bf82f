"""Image files are read alike by Python's side and by the native loader: the same bytes, the same refusals."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from image_tree import encoded, pixels

from hpcai500 import _core
from hpcai500.data.imagenet.index import MOST_BYTES, read_image

SPEC = _core.DecodeSpec(size=8, dtype="uint8")


def refusal_of_the_loader(path: Path) -> str:
    """Why the native loader cannot read a file."""
    with _core.JpegLoader(
        str(path.parent), [path.name], SPEC, slots=[np.zeros((1, *SPEC.shape), np.uint8)], threads=1
    ) as loader:
        loader.submit(np.array([0]), seed=0, epoch=0)
        (failure,) = loader.next().failures
    assert failure.kind == "unreadable"
    return failure.reason


def test_a_file_and_what_a_link_leads_to_are_read_whole(tmp_path: Path) -> None:
    content = encoded(pixels(1))
    (tmp_path / "image").write_bytes(content)
    (tmp_path / "link").symlink_to("image")
    (tmp_path / "empty").touch()
    assert read_image(tmp_path / "image") == read_image(tmp_path / "link") == content
    assert read_image(tmp_path / "empty") == b""


@pytest.mark.parametrize("kind", ["pipe", "folder", "too large", "missing", "link to nothing"])
def test_what_cannot_be_read_is_refused_in_the_loaders_words(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "too large":
        path.touch()
        os.truncate(path, MOST_BYTES + 1)
    elif kind == "link to nothing":
        path.symlink_to("nothing")
    with pytest.raises(OSError, match=r".") as refused:
        read_image(path)
    assert refused.value.strerror
    assert refusal_of_the_loader(path).endswith(refused.value.strerror)
