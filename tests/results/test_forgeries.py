"""Forged submissions: each is told by a named finding, or listed in docs as what no bundle can tell."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from builders.campaigns import SHORT, heads_given, write_campaign
from builders.forgeries import Bundle, Forgery, copy_of, unpack
from builders.forgeries import campaigns as forgeries_of_campaigns
from builders.forgeries import evidence as forgeries_of_evidence
from builders.forgeries import quality as forgeries_of_quality
from builders.forgeries import records as forgeries_of_records
from builders.forgeries import restarts as forgeries_of_restarts
from builders.forgeries.campaigns import account

import hpcai500
from hpcai500.campaign.journal import read_campaign
from hpcai500.record import read_record
from hpcai500.results.submission.pack import SubmitRequest, pack
from hpcai500.results.verification.finding import Finding, Verification
from hpcai500.results.verification.verify import verify_submission

FORGERIES: tuple[Forgery, ...] = (
    *forgeries_of_records.FORGERIES,
    *forgeries_of_campaigns.FORGERIES,
    *forgeries_of_restarts.FORGERIES,
    *forgeries_of_evidence.FORGERIES,
    *forgeries_of_quality.FORGERIES,
)
DOCS = Path(__file__).resolve().parents[2] / "docs" / "verification.md"
FOLDER = Path(hpcai500.__file__).parent / "results/verification"
MAKERS = {"fail", "warning", "note", "skipped", "one_finding", "_same_quality", "_not_less", "Finding"}


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def honest(key: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    """An honest submission of each kind of campaign, packed by `hpcai500 submit` and unpacked for forgers."""
    made: dict[str, Bundle] = {}

    def make(kind: str) -> Bundle:
        if kind not in made:
            root = tmp_path_factory.mktemp(kind)
            match kind:
                case "short":
                    write_campaign(root / "campaign", *SHORT, trials=3, failing=[2], watts=5000.0)
                case "begun-twice":
                    write_campaign(root / "campaign", *SHORT, trials=3, failing=[1, 2, 3])
                case "ewa":
                    write_campaign(root / "campaign", recipe="ewa/reference", trials=5)
                case _:
                    write_campaign(root / "campaign", trials=10)
            pack(SubmitRequest(root / "campaign", root / "submission.zip", "System", "Site", key=key))
            made[kind] = unpack(root / "submission.zip", root / "unpacked", key)
            _account_all(made[kind])
        return made[kind]

    return make


def _account_all(bundle: Bundle) -> None:
    """Slurm's word for each job, which the machine of these tests does not have."""
    campaign = read_campaign(bundle.campaign)
    for job in sorted({job for attempt in campaign.attempts for job in attempt.slurm_jobs}):
        records = [read_record(campaign.record(one)) for one in campaign.attempts if job in one.slurm_jobs]
        moments = [event["time_ms"] for record in records for event in (record.events[0], record.events[-1])]
        account(bundle.folder / "accounting" / f"{job}.json", min(moments), max(moments))
    bundle.manifest["left_out"] = [one for one in bundle.manifest["left_out"] if "accounting" not in one["path"]]


def verified(bundle: Bundle, forgery: Forgery | None, honest: Bundle, tmp_path: Path) -> Verification:
    signers = tmp_path / "signers"
    assert honest.key
    public = honest.key.with_suffix(".pub").read_text().split()
    signers.write_text(f'site namespaces="hpcai500" {public[0]} {public[1]}\n')
    # Only who has no list of keys, no registered identity and no heads can be deceived by an honest-looking bundle.
    asks = forgery is None or forgery.signers
    registered = honest.manifest["campaign"] if forgery is None or forgery.registered else None
    heads = heads_given(honest.campaign) if forgery is None or forgery.heads else None
    submission = bundle.pack(tmp_path / "submission.zip")
    return verify_submission(submission, signers=signers if asks else None, registered=registered, heads=heads)


def against(findings: tuple[Finding, ...]) -> list[Finding]:
    """What is no note, but that nobody vouches for the key where there is no list of keys."""
    weighty = [one for one in findings if one.severity in ("fail", "warning")]
    return [one for one in weighty if (one.severity, one.name) != ("warning", "signature")]


@pytest.mark.parametrize("kind", ["short", "rankable", "ewa"])
def test_nothing_is_said_against_the_honest_bundle(honest: Callable[[str], Bundle], kind: str, tmp_path: Path) -> None:
    found = verified(copy_of(honest(kind), tmp_path / "bundle"), None, honest(kind), tmp_path)
    assert against(found.findings) == []
    assert found.verdict == "verified"
    assert found.rankable == (kind != "short")


@pytest.mark.parametrize("forgery", [one for one in FORGERIES if one.found], ids=lambda one: one.name)
def test_a_forgery_is_told(forgery: Forgery, honest: Callable[[str], Bundle], tmp_path: Path) -> None:
    bundle = copy_of(honest(forgery.campaign), tmp_path / "bundle")
    forgery.forge(bundle)
    found = verified(bundle, forgery, honest(forgery.campaign), tmp_path)
    told = {(one.name, one.severity) for one in found.findings}
    assert (forgery.found, forgery.severity) in told, against(found.findings)
    assert forgery.severity != "note" or not found.rankable, found.reasons
    assert found.verdict == ("refused" if forgery.severity == "fail" else "verified"), against(found.findings)


@pytest.mark.parametrize("forgery", [one for one in FORGERIES if not one.found], ids=lambda one: one.name)
def test_what_no_bundle_can_tell_is_not_told(forgery: Forgery, honest: Callable[[str], Bundle], tmp_path: Path) -> None:
    """If one of them is told one day, its row in the docs moves to the other table."""
    bundle = copy_of(honest(forgery.campaign), tmp_path / "bundle")
    forgery.forge(bundle)
    assert against(verified(bundle, forgery, honest(forgery.campaign), tmp_path).findings) == []


def test_docs_have_a_row_for_each_forgery_and_name_its_finding() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("\n## Forgeries\n")[2].partition("\n## ")[0]
    rows = [
        tuple(cell.strip() for cell in row) for row in re.findall(r"^\| `([\w-]+)` \|(.*?)\|(.*?)\|$", section, re.M)
    ]
    told = {name: re.match(r"`([\w-]+)`", last) for name, _, last in rows}
    documented = {name: found.group(1) if found else None for name, found in told.items()}
    assert documented == {forgery.name: forgery.found for forgery in FORGERIES}
    assert len(FORGERIES) == len(documented) >= 30


def words_of(tree: ast.Module) -> dict[str, str]:
    """Names that a module gives a word to."""
    words: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else [node.targets[0]]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for target, value in zip(targets, values, strict=False):
                if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    words[target.id] = value.value
    return words


def finding_names(tree: ast.Module, shared: Mapping[str, str] | None = None) -> Iterator[str]:
    """First arguments of what makes findings: words, or names that stand for one."""
    words = {**(shared or {}), **words_of(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant):
                yield str(first.value)
            elif isinstance(first, ast.Name) and first.id in words:
                yield words[first.id]


def test_docs_have_a_row_for_each_finding_that_the_code_can_make_and_no_other() -> None:
    shared = words_of(ast.parse((FOLDER / "finding.py").read_text(encoding="utf-8")))
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in FOLDER.rglob("*.py")]
    in_code = {name for tree in trees for name in finding_names(tree, shared)}
    tables = re.findall(r"^\| name \| compares \|\n((?:\|.*\n)+)", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    in_docs = {name for table in tables for name in re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE)}
    assert len(in_code) > 40
    assert (in_code - in_docs, in_docs - in_code) == (set(), set()), "docs/verification.md has other rows"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('fail("a", "b")', {"a"}),
        ('_N = "n"\nwarning(_N, "b")', {"n"}),
        ('_N, _M = "n", "m"\nnote(_M, "b")', {"m"}),
        ('other("a")', set()),
    ],
)
def test_the_search_itself(source: str, names: set[str]) -> None:
    assert set(finding_names(ast.parse(source))) == names
