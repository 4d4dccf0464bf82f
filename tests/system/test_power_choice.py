"""`--power …`: what users may write, and what a mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcai500.errors import UsageError
from hpcai500.system.power import Meter, PowerChoice, parse_power


@pytest.mark.parametrize("word", ["auto", "none", "nvml", "rapl", "ipmi"])
def test_a_word_is_a_kind(word: str) -> None:
    assert parse_power(word) == PowerChoice(word)
    assert str(parse_power(word).from_anywhere()) == word


@pytest.mark.parametrize(
    ("text", "meter"),
    [
        ("csv:m.csv", Meter("m.csv", 0.0, "node")),
        ("csv:/d/%h-*.csv,scope=pdu", Meter("/d/%h-*.csv", 0.0, "pdu")),
        ("csv:m.csv,offset=-3.5", Meter("m.csv", -3.5, "node")),
        ("csv:m.csv,scope=device,offset=1e-3", Meter("m.csv", 0.001, "device")),
        ("csv:a,b:c.csv,offset=2", Meter("a,b:c.csv", 2.0, "node")),
    ],
)
def test_a_meter_is_a_file_with_options_at_its_end(text: str, meter: Meter) -> None:
    choice = parse_power(text)
    assert choice == PowerChoice("csv", meter)
    assert parse_power(str(choice)) == choice


def test_a_meters_file_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    choice = parse_power("csv:%h.csv").from_anywhere()
    assert choice.meter
    assert choice.meter.of("n1") == str(tmp_path / "n1.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected auto, none"),
        ("RAPL", "expected auto, none"),
        ("csv", "expected auto, none"),
        ("csv:", "expected auto, none"),
        ("csv:,offset=3", "expected auto, none"),
        ("rapl:x", "expected auto, none"),
        ("csv:m,offset=soon", "offset: expected seconds, for example -3.5, got soon"),
        ("csv:m,offset=nan", "offset: expected seconds"),
        ("csv:m,scope=rack", "scope: expected device, node, pdu, got rack"),
        ("csv:m,offset=1,offset=2", "offset is given twice"),
        ("csv:m,scop=pdu", "scop: no such option of a meter"),
        ("csv:m,scop=pdu,offset=1", "scop: no such option of a meter"),
    ],
)
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_power(text)
