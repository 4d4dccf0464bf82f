"""Which software this is, from files and never by importing it, and which variables and libraries change it unseen."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from recipes_of_tests import IMAGE, inside

import hpcai500
from hpcai500 import _core
from hpcai500.files import scratch
from hpcai500.recipe import load_recipe
from hpcai500.system import software
from hpcai500.system.container import Container
from hpcai500.system.software import DaliPlugin, find_plugin, loader_check

PACKAGE = Path(hpcai500.__file__).parent


# --- versions and hashes


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
    assert software.installed("no-such-distribution-of-ours") is None


def test_what_torch_says_of_its_cuda_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    found = software.installed_torch()
    assert found is not None
    assert (found.version, found.cuda) == (torch.__version__, torch.version.cuda)
    (folder := tmp_path / "torch").mkdir()
    (tmp_path / "torch-2.13.0.dist-info").mkdir()
    (tmp_path / "torch-2.13.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.13.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    # As a build with CUDA writes it, in the two forms that there have been.
    for line in ("cuda: Optional[str] = '13.0'", 'cuda = "13.0"'):
        (folder / "version.py").write_text(f"__version__ = '2.13.0+cu130'\ndebug = False\n{line}\ngit_version = 'ab'\n")
        found = software.installed_torch()
        assert found is not None
        assert (found.version, found.cuda) == ("2.13.0+cu130", "13.0")


def test_any_change_of_the_code_changes_its_hash(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert software.code_hash(copy) == software.package_code_hash()
    victim = copy / "comm" / "identity.py"
    hashes = {software.package_code_hash()}
    for change in (
        lambda: victim.write_text(victim.read_text().replace("another", "a different", 1)),
        lambda: victim.rename(victim.with_name("sameness.py")),
        lambda: victim.with_name("more.py").touch(),
    ):
        change()
        hashes.add(software.code_hash(copy))
    assert len(hashes) == 4


def test_an_installed_package_and_a_checkout_of_it_are_the_same_code(tmp_path: Path) -> None:
    files = ["__init__.py", "engine/job.py", "recipes/harness/reframe/hpcai500_check.py"]
    for name, has in {"checkout": files[:2], "installed": files}.items():
        for file in has:
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x = 1\n", encoding="utf-8")
    assert software.code_hash(tmp_path / "installed") == software.code_hash(tmp_path / "checkout")


@pytest.mark.parametrize(
    ("container", "content", "expected", "shown"),
    [
        (inside(), b"an image", {"content_sha256": "ca" * 32, "path": "/apps/hpcai500.sif", "note": None},
         f"image     hpcai500-cpu 0.1.0\ncontent   {'ca' * 32}\nfile      /apps/hpcai500.sif"),
        (inside(description=None), b"a site's own", {"name": "hpcai500.sif", "version": None},
         "image     hpcai500.sif\ncontent   unknown\n"),
        (inside(description={name: IMAGE[name] for name in IMAGE if name != "content_sha256"}), None,
         {"content_sha256": None, "file_sha256": None}, "add --bind /apps/hpcai500.sif:/image.sif:ro"),
        (inside(is_sandbox=True), None, {"note": "the image is a folder, so it has no SHA-256"},
         "the image is a folder"),
    ],
    ids=["ours", "a site's own", "not to be seen, and without a field", "a folder"],
)  # fmt: skip
def test_an_image_is_named_by_its_description_and_the_hash_of_its_file(
    tmp_path: Path, container: Container, content: bytes | None, expected: dict[str, object], shown: str
) -> None:
    if content is not None:
        (tmp_path / "image.sif").write_bytes(content)
        container = replace(container, file=tmp_path / "image.sif")
        digest = hashlib.sha256(content).hexdigest()
        expected = {**expected, "file_sha256": digest}
    document = software.version_document(container, "Open MPI 4.1.4")
    assert json.loads(json.dumps(document)) == document
    assert {name: document["image"][name] for name in expected} == expected
    text = "\n".join(software.version_lines(document))
    assert shown in text
    assert f"file      /apps/hpcai500.sif {document['image']['file_sha256'] or ''}".rstrip() in text


def test_the_revision_is_the_checkouts_and_says_if_files_were_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    # Of a checkout whose file server hangs, no commit is known.
    hangs = tmp_path / "git"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(software.shutil, "which", lambda name: str(hangs))
    monkeypatch.setattr(software, "_GIT_SECONDS", 0.1)
    assert software._revision(tmp_path) is None


# --- libraries that are loaded before Python's own


def preloaded_by(library: Path | str) -> str:
    """What a Python that was started with `library` preloaded tells of itself."""
    code = "from hpcai500.system.software import preloaded; print(preloaded())"
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip()


@pytest.mark.parametrize(
    ("library", "told"),
    [
        ("", r"\[\]"),
        ("libresolv.so.2", r"\['/\S*/libresolv.so.2'\]"),
        ("libc.so.6 libresolv.so.2", r"\['/\S*/libresolv.so.2'\]"),
    ],
    ids=["none", "another", "behind one of Python's own"],
)
def test_a_library_that_was_loaded_before_pythons_own_is_named(library: str, told: str) -> None:
    assert re.fullmatch(told, preloaded_by(library))


def test_a_preloaded_library_with_the_name_of_one_of_pythons_own_is_told(tmp_path: Path) -> None:
    library, source = tmp_path / "libc.so.6", tmp_path / "hides.c"
    source.write_text(
        '#include <stdlib.h>\n__attribute__((constructor)) static void hide(void) { unsetenv("LD_PRELOAD"); }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert preloaded_by(library) == str([str(library)])
    # By the name within it, its SONAME, the linker takes a copy for the one that Python asks for.
    own = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so.6" in line)
    library.write_bytes(Path(own).read_bytes())
    assert preloaded_by(library) == str([str(library)])


def test_a_static_python_loads_nothing_before_itself_and_of_a_silent_linker_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: object) -> None:
        raise OSError("Dynamic loading not supported")

    with monkeypatch.context() as static:
        static.setattr(software.ctypes, "CDLL", refuse)
        assert software.preloaded() == []
    monkeypatch.setattr(software, "_needed", set)
    assert software.preloaded() is None


# --- variables


@pytest.mark.parametrize(
    ("effect", "names"),
    [
        (
            "loads code",
            "LD_PRELOAD LD_AUDIT CUDA_INJECTION64_PATH NVTX_INJECTION64_PATH NVTX_INJECTION32_PATH OMP_TOOL_LIBRARIES "
            "NCCL_NET_PLUGIN NCCL_TUNER_PLUGIN NCCL_PROFILER_PLUGIN NCCL_ENV_PLUGIN UCX_MODULE_DIR FI_PROVIDER_PATH "
            "OMPI_MCA_mca_base_component_path OMPI_MCA_component_path PMIX_MCA_mca_base_component_path "
            "HDF5_PLUGIN_PATH HDF5_VOL_CONNECTOR HDF5_DRIVER DALI_PRELOAD_PLUGINS TRITON_PTXAS_PATH "
            "TRITON_OVERRIDE_DIR TRITON_KERNEL_OVERRIDE OPENSSL_CONF OPENSSL_MODULES OPENSSL_ENGINES",
        ),
        ("gives Python other code", "PYTHONPATH PYTHONHOME PYTHONSTARTUP"),
        ("changes arithmetic", "NVIDIA_TF32_OVERRIDE TRITON_F32_DEFAULT TORCHINDUCTOR_EMULATE_PRECISION_CASTS"),
        ("changes what the recipe says", "TORCHDYNAMO_DISABLE TORCH_COMPILE_DISABLE"),
        ("changes clocks", "FAKETIME FAKETIME_SHARED DONT_FAKE_MONOTONIC"),
    ],
)
def test_what_changes_a_run_unseen_is_recorded_with_its_effect(effect: str, names: str) -> None:
    given = dict.fromkeys(names.split(), "1")
    assert software.recorded(given) == given
    assert software.effects(given) == dict.fromkeys(given, effect)


def test_what_is_switched_off_has_no_effect() -> None:
    off = dict.fromkeys(("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TRITON_KERNEL_OVERRIDE"), "0")
    assert software.effects({**off, "NCCL_NET_PLUGIN": "none", "LD_PRELOAD": ""}) == {}


def test_what_makes_runs_slower_or_faster_is_told_apart_from_what_only_describes_them() -> None:
    tuned = {"ATEN_CPU_CAPABILITY": "default", "TORCHINDUCTOR_JOINT_GRAPH_PASSES": "0", "NCCL_ALGO": "Ring"}
    others = {"HPCAI500_NOT_HEEDED": "PYTHONPATH", "HPCAI500_ISA": "avx2", "SLURM_JOB_ID": "1", "SLURM_NNODES": "2"}
    others |= {"PYTHONUNBUFFERED": "1", "LD_LIBRARY_PATH": "/lib"}
    assert software.recorded({**tuned, **others}) == {**tuned, **others}
    assert software.tuning({**tuned, **others, "LD_PRELOAD": "/x.so"}) == set(tuned)


def test_a_cache_of_compiled_code_is_told_unless_the_run_made_it_itself(tmp_path: Path) -> None:
    theirs = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "hpcai500-here-1-abcdefgh" / "torch")}
    with scratch(theirs, tmp_path):
        assert software.recorded(theirs).keys() == {"TORCHINDUCTOR_CACHE_DIR"}
    ours: dict[str, str] = {}
    with scratch(ours, tmp_path):
        ours["TRITON_CACHE_DIR"] = f"{ours['TORCHINDUCTOR_CACHE_DIR']}/triton/0"
        assert software.recorded(ours) == {}


# --- the input loader: DALI, and our operators for exactly its version


PLUGIN = DaliPlugin(Path("libhpcai500_dali-2.4.0.so"), "2.4.0")
DALI = load_recipe("ic/smoke", ["accelerator.loader=dali"])


@pytest.mark.parametrize(
    ("plugin", "dali", "what", "fix"),
    [
        (PLUGIN, None, "DALI is not installed", "run `make dali` in the source tree"),
        (None, None, "DALI is not installed", "run `make dali` in the source tree"),
        (None, "2.4.0", "hpcai500 was built without its operators for the installed DALI 2.4.0", "run `make dali`, or"),
        (
            PLUGIN,
            "2.5.0",
            "our operators were built for DALI 2.4.0, not for the installed DALI 2.5.0",
            "==2.4.0, or set",
        ),
    ],
)
def test_what_a_recipe_of_dali_lacks_is_told(plugin: DaliPlugin | None, dali: str | None, what: str, fix: str) -> None:
    found = loader_check(DALI, plugin, dali)
    assert found.status == "fail"
    assert found.detail.startswith(f"accelerator.loader is dali, but {what}")
    assert found.fix is not None
    assert fix in found.fix
    assert found.fix.endswith("or set accelerator.loader=native")


def test_the_version_that_our_operators_were_built_for_is_welcome_and_needed_by_nobody_else(tmp_path: Path) -> None:
    assert find_plugin(tmp_path) is None
    (tmp_path / "libhpcai500_dali-2.4.0.so").touch()
    assert find_plugin(tmp_path) == DaliPlugin(tmp_path / "libhpcai500_dali-2.4.0.so", "2.4.0")
    assert loader_check(DALI, PLUGIN, "2.4.0").status == "pass"
    assert loader_check(load_recipe("ic/smoke"), None, None).status == "pass"
    assert loader_check(None, None, None).status == "pass"
