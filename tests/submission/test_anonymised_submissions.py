"""With --anonymise no name of a host or a user leaves the site, and all that was computed still holds."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, edit_journal, edit_record, values, write_campaign
from builders.events import chained

from hpcai500.campaign.journal import Campaign, read_campaign
from hpcai500.campaign.standing import standing
from hpcai500.errors import RecordError, UsageError
from hpcai500.methodology.result import derive
from hpcai500.recipe import rulebook
from hpcai500.record import last_hash, read_record
from hpcai500.results.submission import pack as module
from hpcai500.results.submission.anonymise import Replacer, anonymise, find_names, pseudonyms, user_pseudonyms
from hpcai500.results.submission.archive import open_submission
from hpcai500.results.submission.gather import Gathered, gather_campaign
from hpcai500.results.submission.manifest import Anonymised

HOSTS = ("jzx0097.cluster.example.org", "jzx0098")
NAMES = (
    "jzx0097", "jzx0098", "jzx[", "cluster.example.org", "login7", "adelaide", "10.11.12.13",
    "fe80::1ff:fe23:4567:890a", "02:42:ac:11:00:02",
)  # fmt: skip
ACCOUNTING = {"job_id": "1001", "nodes": 2, "node_list": "jzx[0097-0098]", "steps": [{"node_list": "jzx0097"}]}
LOG = """\
srun: error: Node failure on JZX0098
jzx[0097-0099]: lost; jzx00970 and ajzx0097 are other words, version 12.4.1 at 12:34:56
login7.cluster.example.org: /home/Adelaide/runs, adelaide@jzx0097, tcp://10.11.12.13:29500 from 127.0.0.1
jzx0097-ib0 has [fe80::1ff:fe23:4567:890a] and 02:42:ac:11:00:02, jzx0098_gpu3.log
"""


def told(events: list[dict[str, Any]]) -> None:
    """Names where a record has them: besides those of hosts, in a command, captures and paths."""
    for system in values(events, "system"):
        node = system["nodes"][0]
        node["command"] = ["python", "--master", "tcp://10.11.12.13:29500", "-H", "jzx0097:8,JZX0098:8"]
        node["raw"] = {"ibstat": "CA 'mlx5_0' on\njzx0097\n\tnode jzx0097 HCA-1", "lscpu": "version 10.11.12.13"}
        node["environment"] = {
            "LD_PRELOAD": "/home/adelaide/x.so",
            "LD_LIBRARY_PATH": "/opt/jzx0097:/home/Adelaide/lib",
        }
        node["preloaded"] = ["/home/adelaide/x.so"]
        node["software"]["torch_build"] = "built with MKL 10.11.12.14"
    for dataset in values(events, "dataset"):
        dataset["root"] = "/home/adelaide/data/imagenet"
    for cost in values(events, "communication"):
        cost["ranks"] = [
            {"rank": 8 + slow, "host": "jzx0098", "steps": 100, "own_seconds": 1.0 + slow} for slow in range(2)
        ]
        cost["stragglers"] = ["rank 9 on jzx0098"]


def name_hosts(events: list[dict[str, Any]]) -> None:
    for start in values(events, "attempt_start"):
        start["command"] = ["srun", "-w", "jzx[0097-0098]", "python", "--out", "/home/adelaide/runs"]
    values(events, "campaign_start")[0]["data"] = "/home/adelaide/data/imagenet"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """Two trials, one of them in two attempts, with names in all places."""
    folder = write_campaign(
        tmp_path_factory.mktemp("named") / "campaign", *SHORT, trials=2, failing={2}, watts=500.0, hosts=HOSTS,
        images_per_second=4e6,
    )  # fmt: skip
    for record in sorted(folder.glob("trial-*")):
        if (record / "DONE").exists():
            edit_record(record, told)
    (folder / "trial-02" / "ERROR").write_text("jzx0098 was lost\n")
    trace = {"traceEvents": [{"name": "wait\njzx0098", "args": {"jzx0098": 1}}]}
    (folder / "trial-01" / "trace").mkdir()
    (folder / "trial-01" / "trace" / "communication.json").write_text(json.dumps(trace))
    edit_journal(folder, name_hosts)
    return read_campaign(folder)


def gathered(campaign: Campaign) -> Gathered:
    found = gather_campaign(campaign, with_checkpoints=True)
    found.files |= {"accounting/1001.json": json.dumps(ACCOUNTING).encode(), "logs/slurm-jzx0097.out": LOG.encode()}
    found.leave("campaign/jzx0098.core", "dumped by JZX0098")
    return found


@dataclass(frozen=True)
class Anonymous:
    """What leaves the site: files without names, what the manifest says of it, and the campaign that they are."""

    gathered: Gathered
    note: Anonymised
    campaign: Campaign

    @property
    def files(self) -> Mapping[str, bytes]:
        return contents(self.gathered)


@pytest.fixture(scope="module")
def anonymous(campaign: Campaign, tmp_path_factory: pytest.TempPathFactory) -> Anonymous:
    folder = tmp_path_factory.mktemp("anonymous") / "new"
    files = gathered(campaign)
    note = anonymise(campaign, files, folder, here="login7.cluster.example.org", user="adelaide")
    return Anonymous(files, note, read_campaign(folder / "campaign"))


def contents(files: Gathered) -> Mapping[str, bytes]:
    return {path: source if isinstance(source, bytes) else source.read_bytes() for path, source in files.files.items()}


def test_no_name_is_left_in_any_byte(campaign: Campaign, anonymous: Anonymous) -> None:
    before = b"\n".join(contents(gathered(campaign)).values()).lower()
    said = [f"{one.path} {one.reason}".lower() for one in anonymous.gathered.left_out]
    for name in NAMES:
        assert name.encode() in before, f"the test itself lacks {name}"
        assert not [path for path in (*anonymous.files, *said) if name in path]
        for path, content in anonymous.files.items():
            kept = content.lower().replace(b"jzx00970", b"").replace(b"ajzx0097", b"")
            # Versions in captures look like addresses, and are none.
            if name != "10.11.12.13" or not path.endswith(("system.json", "events.jsonl")):
                assert name.encode() not in kept, f"{name} in {path}"


def test_a_trace_that_nobody_reads_through_is_left_out_with_the_reason(campaign: Campaign, tmp_path: Path) -> None:
    files = gathered(campaign)
    long, binary, short = (f"campaign/trial-01/trace/{name}" for name in ("long.json", "jzx0098.gz", "short.json"))
    files.files |= {long: b'"' + b"x" * 100_000 + b'"', binary: b"\x1f\x8bjzx0097", short: b"[]"}
    anonymise(campaign, files, tmp_path / "new", here="", user="adelaide", longest_trace=90_000)
    reasons = {one.path: one.reason for one in files.left_out}
    assert "too large to search for names" in reasons[long]
    assert "cannot be found" in reasons["campaign/trial-01/trace/node-002.gz"]
    assert short in files.files
    assert not {long, binary} & files.files.keys()


def test_a_file_that_is_no_json_is_told_in_one_line(campaign: Campaign, tmp_path: Path) -> None:
    files = gathered(campaign)
    files.files["campaign/trial-01/result.json"] = b"{"
    with pytest.raises(UsageError, match=r"trial-01/result.json: not JSON"):
        anonymise(campaign, files, tmp_path / "new", here="", user="adelaide")


def test_the_same_name_is_the_same_word_everywhere_and_other_words_stay(anonymous: Anonymous) -> None:
    found = anonymous.files
    assert found["logs/slurm-node-001.out"].decode() == (
        "srun: error: Node failure on node-002\n"
        "node-001,node-002,node-003: lost; jzx00970 and ajzx0097 are other words, version 12.4.1 at 12:34:56\n"
        "node-004: /home/user-001/runs, user-001@node-001, tcp://address-001:29500 from 127.0.0.1\n"
        "node-001-ib0 has [address-003] and address-002, node-002_gpu3.log\n"
    )
    assert json.loads(found["accounting/1001.json"])["node_list"] == "node-001,node-002"
    system = json.loads(found["campaign/trial-01/system.json"])
    assert [node["host"] for node in system["nodes"]] == ["node-001", "node-002"]
    assert system["nodes"][0]["command"][-1] == "node-001:8,node-002:8"
    assert system["nodes"][0]["software"]["torch_build"] == "built with MKL 10.11.12.14"
    assert "campaign/trial-01/power/node-001.csv" in found
    assert found["campaign/trial-02/ERROR"] == b"node-002 was lost\n"
    trace = json.loads(found["campaign/trial-01/trace/communication.json"])
    assert trace["traceEvents"][0] == {"name": "wait\nnode-002", "args": {"node-002": 1}}
    # Two that ran, one of a list beside them, and the one of the same domain.
    assert anonymous.note.hosts == 4


def test_all_bindings_hold_as_before_and_the_heads_of_the_originals_are_kept(
    campaign: Campaign, anonymous: Anonymous
) -> None:
    after, note = anonymous.campaign, anonymous.note
    assert standing(after).reasons == standing(campaign).reasons
    for attempt in (one for one in after.attempts if one.status == "done"):
        read = read_record(after.record(attempt))
        written = json.loads((after.record(attempt) / "result.json").read_text())
        assert written == derive(read.tables, rulebook(campaign.edition, campaign.benchmark), read.events).as_json()
        assert written["stragglers"] == ["rank 9 on node-002"]
    assert after.identity != campaign.identity
    assert anonymous.files["campaign/trial-01/checkpoints/epoch-0004-step-0000000.pt"]
    heads = {one.record: last_hash((campaign.record(one) / "events.jsonl").read_bytes()) for one in campaign.attempts}
    assert note.original_campaign == campaign.identity
    assert note.original_heads == {
        "campaign/campaign.jsonl": campaign.head,
        **{f"campaign/{record}/events.jsonl": head for record, head in heads.items()},
    }


def test_a_binding_that_was_broken_stays_broken(campaign: Campaign, tmp_path: Path) -> None:
    forged = shutil.copytree(campaign.path, tmp_path / "campaign")
    result = json.loads((forged / "trial-01" / "result.json").read_text())
    (forged / "trial-01" / "result.json").write_text(json.dumps({**result, "vflops": 1.0}))
    before = read_campaign(forged)
    text = (forged / "campaign.jsonl").read_text().replace(str(before.attempts[0].head), "f" * 64)
    (forged / "campaign.jsonl").write_text(text)
    edit_record(forged / "trial-01", lambda _: None, rechain=False)
    lines = [json.loads(line) for line in text.splitlines()]
    (forged / "campaign.jsonl").write_bytes(chained(lines))
    broken = read_campaign(forged)
    files = gather_campaign(broken, with_checkpoints=False)
    anonymise(broken, files, tmp_path / "new", here="", user="")
    after = read_campaign(tmp_path / "new" / "campaign")
    assert after.attempts[0].head == "f" * 64
    assert len(standing(after).reasons) == len(standing(broken).reasons) > len(standing(campaign).reasons)
    assert json.loads((after.path / "trial-01" / "result.json").read_text())["vflops"] == 1.0


def test_a_broken_chain_cannot_be_anonymised(campaign: Campaign, tmp_path: Path) -> None:
    broken = shutil.copytree(campaign.path, tmp_path / "campaign")
    edit_record(broken / "trial-01", lambda events: events[3].update(value=None), rechain=False)
    with pytest.raises(RecordError, match="chain is broken"):
        anonymise(campaign, gather_campaign(read_campaign(broken), with_checkpoints=False), tmp_path / "new", here="")


def test_the_whole_command_leaves_no_name(campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, log = tmp_path / "hpcai500", tmp_path / "slurm-jzx0097.out"
    package.mkdir()
    (package / "__init__.py").write_text("# no code\n")
    monkeypatch.setattr(module, "_PACKAGE", package)
    monkeypatch.setattr(module.facts, "require_one_code", lambda *_: None)
    log.write_text(LOG)
    made = module.pack(module.SubmitRequest(campaign.path, tmp_path / "s.zip", "A", "B", anonymise=True, logs=[log]))
    assert made.manifest.anonymised.hosts == 4
    assert made.manifest.campaign != campaign.identity
    with zipfile.ZipFile(made.path) as found:
        for name in found.namelist():
            content = found.read(name).lower().replace(b"jzx00970", b"").replace(b"ajzx0097", b"")
            assert b"jzx" not in content, name
            assert b"cluster.example.org" not in content, name
            assert b"adelaide" not in content or name == "manifest.json", name
    assert open_submission(made.path, tmp_path / "out").manifest == made.manifest


def replacer(hosts: str, text: str = "", here: str = "", user: str = "") -> Replacer:
    found = find_names([{"hosts": hosts.split(",")}], [text], here, user)
    return Replacer(pseudonyms(found, here), user_pseudonyms(found))


@pytest.mark.parametrize(
    ("hosts", "text", "expected"),
    [
        ("n1", "n1 n10 an1 N1 n1a", "node-001 n10 an1 node-001 n1a"),
        ("n1", "n1-ib n1_x n1.log (n1)", "node-001-ib node-001_x node-001.log (node-001)"),
        ("n2,n10", "n10 n2", "node-001 node-002"),
        ("n01,n02", "n[01-02] n[1-2] m[01-02]", "node-001,node-002 n[1-2] m[01-02]"),
        ("n01", "n[01,03-04].x", "n[01,03-04].x"),
        ("n01", "n[01,03-04]", "node-001,node-002,node-003"),
        ("node-1,node-2", "node-1 node-10", "host-001 node-10"),
        ("rack1-n1,n1", "rack1-n1 rack1 n1", "node-002 rack1 node-001"),
        ("a.x.org,a.y.org", "a.x.org a.y.org", "node-001 node-002"),
        ("a.x.org", "a A.X.ORG b.x.org x.org nota.x.orgy", "node-001 node-001 node-002 domain-001 nota.x.orgy"),
        ("localhost", "localhost:80", "localhost:80"),
        ("n1", "10.0.0.1 999.1.1.1 1.2.3 1.2.3.4.5", "address-001 999.1.1.1 1.2.3 1.2.3.4.5"),
        ("n1", "::1 fe80::b 12:34:56 c10::cuda", "::1 address-001 12:34:56 c10::cuda"),
        ("n1", "/home/bob/x /home/root/x bob rootbob", "/home/user-001/x /home/root/x user-001 rootbob"),
        ("n1", "/home/data/x data", "/home/user-001/x data"),
    ],
)  # fmt: skip
def test_names_are_replaced_as_whole_words(hosts: str, text: str, expected: str) -> None:
    assert replacer(hosts, text).text(text) == expected


def test_words_of_the_format_stay_whatever_a_host_is_called() -> None:
    document = {"key": "done1", "status": "done1", "record": "done1", "host": "done1", "reason": "done1 ended"}
    assert replacer("done1").value(document) == {
        "key": "done1", "status": "done1", "record": "done1", "host": "node-001", "reason": "node-001 ended",
    }  # fmt: skip


def test_a_host_that_is_called_like_a_number_or_a_word_of_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="looks like a number"):
        replacer("17")
    story = {"trials": 1, "images_per_second": 4e7, "hosts": ("power", "n2"), "watts": 5.0}
    campaign = read_campaign(write_campaign(tmp_path / "campaign", *SHORT, **story))
    with pytest.raises(UsageError, match="submit without --anonymise"):
        anonymise(campaign, gather_campaign(campaign, with_checkpoints=False), tmp_path / "new", here="", user="")


def test_the_host_that_packs_is_replaced_too() -> None:
    found = replacer("n1", here="front.site.org").text("front front.site.org n1")
    assert found == "submitting-host submitting-host node-001"
