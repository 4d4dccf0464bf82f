"""Figures look as our code says, whatever a stranger has put into the folder that a command is started in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hpcai500.drawing import drawn

PACKAGE = Path(__file__).resolve().parents[1] / "hpcai500"
# All text white, on a white ground.
HOSTILE = "text.color: ffffff\nfont.size: 1\nsvg.fonttype: path\naxes.titlecolor: ffffff\n"
DRAWS = """
import hashlib, sys
from hpcai500.drawing import drawn
def draw(figure):
    figure.text(0.1, 0.1, "micro.json is not signed")
    figure.subplots().set_title("a title")
for kind, content in drawn(draw, (4, 3), 100, ("svg", "png")).items():
    print(kind, hashlib.sha256(content).hexdigest())
"""


def _drawn_in(folder: Path) -> str:
    command = [sys.executable, "-W", "error::DeprecationWarning:matplotlib", "-c", DRAWS]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_matplotlibrc_in_the_current_folder_changes_no_figure(tmp_path: Path) -> None:
    plain = _drawn_in(tmp_path)
    (tmp_path / "matplotlibrc").write_text(HOSTILE)
    assert _drawn_in(tmp_path) == plain


def test_no_figure_runs_tex() -> None:
    import matplotlib as mpl

    with mpl.rc_context({"text.usetex": True}):
        assert b">seen<" in drawn(lambda figure: figure.text(0.1, 0.1, "seen"), (4, 3), 100, ["svg"])["svg"]
        assert mpl.rcParams["text.usetex"], "others keep their settings"


def test_all_figures_go_through_one_door() -> None:
    doors = {"FigureCanvasAgg", ".savefig(", "pyplot"}
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(door in path.read_text(encoding="utf-8") for door in doors)
    }
    assert users == {"drawing.py"}
