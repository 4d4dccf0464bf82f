"""The verdict as JUnit XML, which Jenkins and GitLab show: a test case for each requirement and each criterion."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from hpcai500 import __version__
from hpcai500.results.acceptance.criteria import Judged
from hpcai500.results.acceptance.requirements import Requirement
from hpcai500.results.acceptance.text import contracted, interval_text, margin_text, measured_text
from hpcai500.results.acceptance.verdict import Acceptance
from hpcai500.results.report.words import legible


def junit_xml(acceptance: Acceptance) -> bytes:
    """The document, in UTF-8; `legible` leaves nothing that XML 1.0 cannot hold.

    A test case fails where a criterion is missed, and also where it is missing: skipped tests would pass for good ones.
    """
    requirements, criteria = acceptance.requirements, acceptance.criteria
    made = acceptance.made.strftime("%Y-%m-%dT%H:%M:%S")
    root = ET.Element("testsuites", _counts("hpcai500 accept", [*requirements, *criteria]))
    for name, ones in (("requirements", requirements), ("criteria", criteria)):
        suite = ET.SubElement(root, "testsuite", {**_counts(name, ones), "timestamp": made})
        properties = ET.SubElement(suite, "properties")
        for key, value in _properties(acceptance).items():
            ET.SubElement(properties, "property", {"name": key, "value": legible(value)})
        for one in ones:
            _case(suite, f"hpcai500.accept.{name}", one)
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _counts(name: str, ones: Sequence[Requirement | Judged]) -> dict[str, str]:
    failures = sum(one.verdict != "pass" for one in ones)
    return {
        "name": legible(name), "tests": str(len(ones)), "failures": str(failures), "errors": "0", "skipped": "0",
        "time": "0",
    }  # fmt: skip


def _properties(acceptance: Acceptance) -> dict[str, str]:
    contract = acceptance.request.contract
    return {
        "title": acceptance.title,
        "verdict": acceptance.verdict,
        "contract_sha256": contract.sha256 if contract else "",
        "system": contract.spec.system.name if contract else "",
        "judged": "; ".join(one.sentence for one in acceptance.subjects),
        "not_rankable": acceptance.loud,
        "implausible": "; ".join(said for one in acceptance.evidence.submissions for said in one.implausible),
        "hpcai500": __version__,
    }


def _case(suite: ET.Element, group: str, one: Requirement | Judged) -> None:
    case = ET.SubElement(suite, "testcase", {"classname": group, "name": legible(one.name), "time": "0"})
    said = _of_requirement(one) if isinstance(one, Requirement) else _of_criterion(one)
    text = "\n".join(f"{key}: {value}" for key, value in said.items() if value)
    if one.verdict == "pass":
        ET.SubElement(case, "system-out").text = legible(text)
        return
    brief = ", ".join(f"{key} {value}" for key, value in list(said.items())[:3] if value and value != "-")
    failure = ET.SubElement(case, "failure", {"message": legible(brief), "type": one.verdict})
    failure.text = legible(text)


def _of_requirement(one: Requirement) -> dict[str, str]:
    return {"required": one.required, "found": one.found, "detail": one.detail}


def _of_criterion(one: Judged) -> dict[str, str]:
    values = ", ".join(f"{value:.6g}" for value in one.values)
    return {
        "contracted": contracted(one),
        "measured": measured_text(one),
        "margin": margin_text(one),
        "95 % interval": interval_text(one),
        "statistic": one.statistic or "",
        f"values in {one.metric.unit}": values,
        "clause": one.clause,
        "note": one.note,
    }
