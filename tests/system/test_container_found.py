"""The container as Apptainer tells of it: variables as seen with 1.4.5, files in a folder that stands for `/`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recipes_of_tests import IMAGE, inside

from hpcai500.errors import EnvironmentLacksError
from hpcai500.interpreter import without_code
from hpcai500.system.container import Container, find_container, short_image
from hpcai500.system.doctor import container_check, image_check, python_check

STARTED = {
    "APPTAINER_CONTAINER": "/apps/hpcai500.sif",
    "APPTAINER_NAME": "hpcai500.sif",
    "APPTAINER_COMMAND": "run",
    "APPTAINER_BIND": "",
    "SINGULARITY_CONTAINER": "/apps/hpcai500.sif",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root folder as an image has it: with an empty file to bind on."""
    (tmp_path / ".singularity.d" / "libs").mkdir(parents=True)
    (tmp_path / "image.sif").touch()
    return tmp_path


def describe(prefix: Path, text: str) -> None:
    path = prefix / "share" / "hpcai500" / "image.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_outside_there_is_none(tmp_path: Path) -> None:
    assert find_container({"HOME": "/root"}, tmp_path, tmp_path) is None
    assert container_check(None, read_only=True).status == "pass"
    assert image_check(None, ["ic"]).fix is None


def test_an_image_of_ours_is_named_by_what_it_says_of_itself(root: Path) -> None:
    describe(root, json.dumps(IMAGE))
    container = find_container(STARTED, root, root)
    assert container is not None
    assert (container.name, container.action, container.file) == ("hpcai500-cpu 0.1.0", "run", None)
    check = container_check(container, read_only=True)
    assert check.detail == "apptainer, hpcai500-cpu 0.1.0, content cacacacacaca, read-only"


def test_another_image_is_said_to_be_none_of_ours(root: Path) -> None:
    container = find_container(STARTED, root, root)
    assert container_check(container, read_only=False).detail == (
        "apptainer, hpcai500.sif, writable; no image of hpcai500"
    )


def test_a_container_without_variables_is_known_by_its_folder(root: Path) -> None:
    assert find_container({}, root, root) == Container("apptainer")


def test_singularity_goes_by_its_own_name(root: Path) -> None:
    container = find_container({"SINGULARITY_CONTAINER": "/apps/old.sif"}, root, root)
    assert container is not None
    assert container.line(["--nv"], ["ic"]) == "singularity run --nv /apps/old.sif ic"


def test_the_file_that_was_bound_for_it_comes_before_the_path_on_the_host(root: Path) -> None:
    (root / "apps").mkdir()
    (root / "apps" / "hpcai500.sif").write_bytes(b"seen under its own path")
    found = find_container(STARTED, root, root)
    assert found is not None
    assert found.file == root / "apps" / "hpcai500.sif"
    (root / "image.sif").write_bytes(b"bound")
    found = find_container(STARTED, root, root)
    assert found is not None
    assert found.file == root / "image.sif"
    assert image_check(found, ["ic"]).status == "pass"


def test_an_image_that_cannot_be_seen_is_told_with_the_bind_to_add(root: Path) -> None:
    container = find_container(STARTED, root, root)
    check = image_check(container, ["ic", "--data", "/scratch/my data"])
    assert check.status == "warn"
    assert check.fix == (
        "apptainer run --bind /apps/hpcai500.sif:/image.sif:ro /apps/hpcai500.sif ic --data '/scratch/my data'"
    )


def test_a_folder_as_image_has_no_hash_and_needs_no_bind(root: Path) -> None:
    (root / "apps" / "hpcai500.sif").mkdir(parents=True)
    container = find_container(STARTED, root, root)
    assert image_check(container, ["ic"]).status == "pass"
    assert "a folder (sandbox)" in container_check(container, read_only=True).detail


def test_the_line_to_type_keeps_what_is_known_of_the_start(root: Path) -> None:
    (root / ".singularity.d" / "libs" / "libcuda.so.1").touch()
    container = find_container(STARTED | {"APPTAINER_COMMAND": "exec", "APPTAINER_BIND": "/data"}, root, root)
    assert container is not None
    assert container.line(["--bind", "/scratch"], ["ic"]) == (
        "apptainer exec --nv --bind /scratch /apps/hpcai500.sif hpcai500 ic (beside the --bind that you gave)"
    )


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_damaged_description_is_refused(root: Path, text: str) -> None:
    describe(root, text)
    with pytest.raises(EnvironmentLacksError, match=r"image\.json.*: get the image again"):
        find_container(STARTED, root, root)


def test_packages_that_are_not_heeded_are_told() -> None:
    check = python_check(inside(), without_code({"PYTHONPATH": "/home/me/lib", "PYTHONHOME": "/usr"}))
    assert check.status == "warn"
    assert check.detail.startswith("PYTHONPATH, PYTHONHOME are set but ignored: packages on them are not used")
    one = python_check(None, without_code({"PYTHONPATH": "/home/me/lib", "OPENSSL_CONF": "/x.cnf"}))
    assert one.detail.startswith("PYTHONPATH is set but ignored: packages on it are not used")
    assert python_check(None, without_code({"OPENSSL_CONF": "/x.cnf"})).status == "pass"
    assert python_check(inside(), without_code({"PYTHONPATH": "", "PYTHONSTARTUP": "/x.py"})).status == "pass"
    assert python_check(None, {}).detail == "that of the installation alone"


def test_the_short_form_shows_what_is_known() -> None:
    assert short_image({"name": "a", "version": "1", "content_sha256": None, "file_sha256": "ab" * 32}) == (
        "a 1, file abababababab"
    )
    assert short_image({"name": "site.sif", "version": None, "content_sha256": None}) == "site.sif"
