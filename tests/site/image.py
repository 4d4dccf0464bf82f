"""The image, run as the users of a site run it: without root, from a file that they cannot change."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builders.ranks import clean_environment

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "image" / "hpcai500-cpu.sif"
USER = 1000
_FUSE = Path("/dev/fuse")
_FUSE_NUMBER = os.makedev(10, 229)


def why_no_image() -> str | None:
    """Why the image cannot be run here, or None."""
    if not BUILT.exists():
        return f"{BUILT.relative_to(ROOT)} is not there: make image"
    if os.geteuid() != 0:
        return "needs root, to become an ordinary user"
    return None


def apptainer_path() -> str:
    """The Apptainer that the project uses."""
    command = [ROOT / "scripts" / "find-apptainer"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def let_users_mount() -> None:
    """Give users a /dev/fuse, as machines have it; in the mount namespace of this process, which the tests run in."""
    if os.access(_FUSE, os.F_OK) and _FUSE.stat().st_mode & 0o006 == 0o006:
        return
    folder = Path(tempfile.mkdtemp())
    subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    os.mknod(folder / "fuse", 0o020666, _FUSE_NUMBER)
    (folder / "fuse").chmod(0o666)
    _FUSE.touch()
    subprocess.run(["mount", "--bind", folder / "fuse", _FUSE], check=True)
    subprocess.run(["umount", "--lazy", folder], check=True)
    folder.rmdir()


@dataclass(frozen=True)
class Ran:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """All of it, for messages of tests."""
        return f"exit code {self.code}\n{self.out}\n{self.err}"


class Image:
    """The image in a folder that an ordinary user reaches, and that user's home and working folder.

    Attributes:
        path: of the image.
        apptainer: of Apptainer.
        home: of the user, which is also where commands start.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="image-"))
        self.folder.chmod(0o755)
        self.path = self.folder / BUILT.name
        # No mount: the hosts of a site that is there already would not see it.
        try:
            self.path.hardlink_to(BUILT)
        except OSError:
            shutil.copy(BUILT, self.path)
        self.home = self.folder / "home"
        self.home.mkdir()
        os.chown(self.home, USER, USER)
        self.apptainer = apptainer_path()
        let_users_mount()

    def close(self) -> None:
        """Take it away with all that was written."""
        shutil.rmtree(self.folder)

    def run(self, *words: str | Path, **how: object) -> Ran:
        """`apptainer WORDS` as the user, where IMAGE stands for the image's path; without Apptainer's own remarks."""
        return self.command(self.apptainer, "--quiet", *words, **how)  # type: ignore[arg-type]

    def command(
        self,
        *words: str | Path,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        seconds: float = 300,
    ) -> Ran:
        """Any command as the user."""
        ended = subprocess.run(
            self.tokens(*words),
            env=self.environment(environment),
            cwd=cwd or self.home,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
        return Ran(ended.returncode, ended.stdout, ended.stderr)

    def tokens(self, *words: str | Path) -> list[str]:
        """The tokens that run `words` as the user."""
        user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]
        return [*user, *(str(self.path) if word == "IMAGE" else str(word) for word in words)]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What the user's shell has."""
        kept = {
            name: value for name, value in clean_environment().items() if not name.startswith(("PYTHON", "VIRTUAL"))
        }
        path = os.pathsep.join([str(Path(self.apptainer).parent), "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"])
        return kept | {"HOME": str(self.home), "PATH": path, "USER": "someone", **(more or {})}
