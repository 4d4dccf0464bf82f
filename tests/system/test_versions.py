"""Which software this is: from files, never by importing it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from recipes_of_tests import IMAGE, inside

import hpcai500
from hpcai500 import _core
from hpcai500.system import mpi, software

PACKAGE = Path(hpcai500.__file__).parent


def test_every_hash_is_that_of_the_file() -> None:
    document = software.version_document(None, None)
    assert document["image"] is None
    assert document["package"]["version"] == hpcai500.__version__
    assert document["package"]["core_sha256"] == hashlib.sha256(Path(_core.__file__).read_bytes()).hexdigest()
    v2 = hashlib.sha256((PACKAGE / "editions" / "v2.0.toml").read_bytes()).hexdigest()
    assert document["editions"]["v2.0"] == v2


def test_torch_is_known_without_its_import() -> None:
    code = (
        "import sys; from hpcai500.system.software import version_document; document = version_document(None, None); "
        "assert not {'torch', 'horovod', 'numpy'} & set(sys.modules); print(document['software']['torch'])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert told == metadata.version("torch")


def test_what_torch_says_of_its_cuda_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    found = software.installed_torch()
    assert found is not None
    assert (found.version, found.cuda) == (torch.__version__, torch.version.cuda)
    # As a build with CUDA writes it, in the two forms that there have been.
    for line in ("cuda: Optional[str] = '13.0'", 'cuda = "13.0"'):
        folder = tmp_path / "torch"
        folder.mkdir(exist_ok=True)
        (folder / "version.py").write_text(f"__version__ = '2.13.0+cu130'\ndebug = False\n{line}\ngit_version = 'ab'\n")
        (tmp_path / "torch-2.13.0.dist-info").mkdir(exist_ok=True)
        (tmp_path / "torch-2.13.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.13.0\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        found = software.installed_torch()
        assert found is not None
        assert (found.version, found.cuda) == ("2.13.0+cu130", "13.0")


def test_what_is_not_installed_is_none() -> None:
    assert software.installed("no-such-distribution-of-ours") is None


@pytest.mark.parametrize("change", ["content", "name", "new file"])
def test_any_change_of_the_code_changes_its_hash(tmp_path: Path, change: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = software.code_hash(copy)
    assert before == software.package_code_hash()
    victim = copy / "comm" / "identity.py"
    match change:
        case "content":
            victim.write_text(victim.read_text().replace("another", "a different", 1))
        case "name":
            victim.rename(victim.with_name("sameness.py"))
        case _:
            victim.with_name("more.py").touch()
    assert software.code_hash(copy) != before


def test_an_image_is_named_by_its_description_and_the_hash_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "image.sif"
    file.write_bytes(b"an image")
    document = software.version_document(inside(file=file), "Open MPI 4.1.4")
    image = document["image"]
    assert image["file_sha256"] == hashlib.sha256(b"an image").hexdigest()
    assert (image["content_sha256"], image["path"], image["note"]) == ("ca" * 32, "/apps/hpcai500.sif", None)
    text = "\n".join(software.version_lines(document))
    assert f"image     hpcai500-cpu 0.1.0\ncontent   {'ca' * 32}\n" in text
    assert f"file      /apps/hpcai500.sif {image['file_sha256']}" in text


def test_an_image_whose_file_cannot_be_seen_says_what_to_bind() -> None:
    document = software.version_document(inside(), None)
    assert document["image"]["file_sha256"] is None
    assert document["image"]["note"].endswith("add --bind /apps/hpcai500.sif:/image.sif:ro")
    assert document["image"]["note"] in "\n".join(software.version_lines(document))
    folder = software.version_document(inside(is_sandbox=True), None)
    assert folder["image"]["note"] == "the image is a folder, which has no SHA-256 of its own"


def test_an_image_of_somebody_else_is_known_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "image.sif"
    file.write_bytes(b"a site's own")
    document = software.version_document(inside(description=None, file=file), None)
    assert (document["image"]["name"], document["image"]["version"]) == ("hpcai500.sif", None)
    assert document["image"]["file_sha256"] == hashlib.sha256(b"a site's own").hexdigest()
    assert "image     hpcai500.sif\ncontent   unknown\n" in "\n".join(software.version_lines(document))


def test_an_image_that_lacks_a_field_has_it_as_null() -> None:
    partial = {name: value for name, value in IMAGE.items() if name != "content_sha256"}
    assert software.version_document(inside(description=partial), None)["image"]["content_sha256"] is None


def test_the_revision_is_the_checkouts_and_says_if_files_were_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert software._revision(tmp_path) is None
    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    head = git("rev-parse", "HEAD")
    assert software._revision(tmp_path) == head
    (tmp_path / "a").write_text("2")
    assert software._revision(tmp_path) == f"{head}+dirty"


def test_of_a_checkout_whose_file_server_hangs_no_commit_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nexec sleep 600\n")
    git.chmod(0o755)
    monkeypatch.setattr(software.shutil, "which", lambda name: str(git))
    monkeypatch.setattr(software, "_GIT_SECONDS", 0.1)
    assert software._revision(tmp_path) is None


def test_the_mpi_that_a_program_would_load_is_asked(tmp_path: Path) -> None:
    """A mock: the real one is asked by the ranks of tests/comm, where Horovod tells its library."""
    source = tmp_path / "mock_mpi.c"
    source.write_text(
        '#include <string.h>\nint MPI_Get_library_version(char *text, int *length) { strcpy(text, "Open MPI v5.0.6, '
        'package: Debian\\nsecond line"); *length = (int)strlen(text); return 0; }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libmpi.so.40", source], check=True)
    assert mpi.installed_mpi({"LD_LIBRARY_PATH": str(tmp_path)}) == "Open MPI 5.0.6"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022", "Open MPI 4.1.4"),
        ("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7 12:34:45 CDT 2022", "MPICH Version: 4.0.2"),
        ("Intel(R) MPI Library 2021.9 for Linux* OS\n", "Intel(R) MPI Library 2021.9 for Linux* OS"),
    ],
)
def test_an_mpi_is_named_in_few_words(text: str, name: str) -> None:
    assert mpi.short_name(text) == name


def test_the_document_is_plain_json() -> None:
    document = software.version_document(inside(), "Open MPI 4.1.4")
    assert json.loads(json.dumps(document)) == document


def test_an_installed_package_and_a_checkout_of_it_are_the_same_code(tmp_path: Path) -> None:
    for name, files in {
        "checkout": ["__init__.py", "engine/job.py"],
        "installed": ["__init__.py", "engine/job.py", "recipes/harness/reframe/hpcai500_check.py"],
    }.items():
        for file in files:
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x = 1\n", encoding="utf-8")
    assert software.code_hash(tmp_path / "installed") == software.code_hash(tmp_path / "checkout")
    (tmp_path / "installed" / "engine" / "job.py").write_text("x = 2\n", encoding="utf-8")
    assert software.code_hash(tmp_path / "installed") != software.code_hash(tmp_path / "checkout")
