"""The check of the input loader: DALI, and our operators for exactly its version."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcai500.recipe import load_recipe
from hpcai500.system.software import DaliPlugin, find_plugin, loader_check

PLUGIN = DaliPlugin(Path("libhpcai500_dali-2.4.0.so"), "2.4.0")
DALI = load_recipe("ic/smoke", ["accelerator.loader=dali"])


@pytest.mark.parametrize(
    ("plugin", "dali", "what", "fix"),
    [
        (PLUGIN, None, "DALI is not installed", "run `make dali` in the source tree"),
        (None, None, "DALI is not installed", "run `make dali` in the source tree"),
        (None, "2.4.0", "hpcai500 was built without its operators for the DALI 2.4.0", "run `make dali`, or"),
        (PLUGIN, "2.5.0", "DALI 2.5.0 is installed, and our operators were built for DALI 2.4.0", "==2.4.0, or set"),
    ],
)
def test_what_a_recipe_of_dali_lacks_is_told(plugin: DaliPlugin | None, dali: str | None, what: str, fix: str) -> None:
    found = loader_check(DALI, plugin, dali)
    assert found.status == "fail"
    assert found.detail.startswith(f"accelerator.loader is dali, but {what}")
    assert found.fix is not None
    assert fix in found.fix
    assert found.fix.endswith("or set accelerator.loader=native")


def test_the_version_that_it_was_built_for_is_welcome() -> None:
    assert loader_check(DALI, PLUGIN, "2.4.0").status == "pass"


def test_who_does_not_ask_for_dali_needs_none() -> None:
    assert loader_check(load_recipe("ic/smoke"), None, None).status == "pass"
    assert loader_check(None, None, None).status == "pass"


def test_the_plugin_is_found_by_its_name(tmp_path: Path) -> None:
    assert find_plugin(tmp_path) is None
    (tmp_path / "libhpcai500_dali-2.4.0.so").touch()
    assert find_plugin(tmp_path) == DaliPlugin(tmp_path / "libhpcai500_dali-2.4.0.so", "2.4.0")
