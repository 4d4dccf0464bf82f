"""An image is signed with a key in PEM; one that was changed afterwards, or signed by someone else, is told apart."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from image import Image


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A private key; its public half is beside it, ending in .pub."""
    return make_key(tmp_path / "site.pem")


def make_key(path: Path) -> Path:
    subprocess.run(["openssl", "genrsa", "-out", path, "2048"], check=True, capture_output=True)
    public = ["openssl", "rsa", "-in", path, "-pubout", "-out", path.with_suffix(".pub")]
    subprocess.run(public, check=True, capture_output=True)
    return path


@pytest.fixture
def small(image: Image, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copy(image.path, tmp_path / "copy.sif"))


def apptainer(image: Image, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([image.apptainer, *words], capture_output=True, text=True, check=False)


def test_a_signed_image_is_verified_with_the_public_key(image: Image, small: Path, key: Path) -> None:
    signed = apptainer(image, "sign", "--key", key, small)
    assert signed.returncode == 0, signed.stderr
    verified = apptainer(image, "verify", "--key", key.with_suffix(".pub"), small)
    assert verified.returncode == 0, verified.stderr


def test_a_changed_image_and_another_key_are_refused(image: Image, small: Path, key: Path, tmp_path: Path) -> None:
    assert apptainer(image, "sign", "--key", key, small).returncode == 0
    other = make_key(tmp_path / "other.pem")
    assert apptainer(image, "verify", "--key", other.with_suffix(".pub"), small).returncode != 0
    with small.open("r+b") as file:
        file.seek(small.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    assert apptainer(image, "verify", "--key", key.with_suffix(".pub"), small).returncode != 0


def test_an_unsigned_image_does_not_pass(image: Image, small: Path, key: Path) -> None:
    assert apptainer(image, "verify", "--key", key.with_suffix(".pub"), small).returncode != 0
