"""Another's runs under one's own name: what runs tell gives them away, whatever is written around them."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, copy_campaign, edit_journal, edit_record, values, write_campaign
from builders.forgeries import copy_of, unpack

from hpcai500.campaign.journal import read_campaign
from hpcai500.errors import UsageError
from hpcai500.record import Event, read_record
from hpcai500.results.ranking.pages import make_ranking
from hpcai500.results.ranking.ranking import Ranking, ranking_document
from hpcai500.results.submission.pack import SubmitRequest, pack
from hpcai500.results.verification.copies import Runs, Shared, run_facts, shared_runs

ALL = ("losses", "times", "weights", "checkpoints", "moments on one machine")
TRIALS = 4
OTHER_SEEDS = "hyperparameters.seed=501"
LATER_S = 1_782_438_400.0

Change = Callable[[list[Event]], object]
CLOCKS = ("moments on one machine",)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four short runs, honestly made."""
    return write_campaign(tmp_path_factory.mktemp("own") / "campaign", *SHORT, trials=TRIALS)


@pytest.fixture
def stolen(own: Path, tmp_path: Path) -> Path:
    """The same with a first line of the thief's."""
    copy = copy_campaign(own, tmp_path / "stolen")
    edit_journal(copy, first_line_of_a_thief)
    return copy


def first_line_of_a_thief(events: list[Event]) -> None:
    values(events, "campaign_start")[0]["data"] = "/data/of-the-thief"


def written(folder: Path, *settings: str, **story: Any) -> Path:
    """What somebody else has honestly made."""
    return write_campaign(folder / "other", *SHORT, *settings, **{"trials": TRIALS, **story})


def runs_of(folder: Path) -> Runs:
    campaign = read_campaign(folder)
    return {one.record: run_facts(read_record(campaign.record(one))) for one in campaign.done()}


def shared(own: Path, other: Path) -> Shared | None:
    """What `other` has of `own`."""
    return shared_runs([runs_of(own), runs_of(other)])[1].get(0)


def edit_all(campaign: Path, *changes: Change) -> None:
    for record in sorted(path.parent for path in campaign.glob("*/DONE")):
        edit_record(record, lambda events: [change(events) for change in changes])


def invented(text: object) -> str:
    return hashlib.sha256(f"of the thief {text}".encode()).hexdigest()


def each(key: str, field: str, change: Callable[[Any], Any]) -> Change:
    """Another value of a field in all events of one name."""

    def apply(events: list[Event]) -> None:
        for value in values(events, key):
            value[field] = change(value[field])

    return apply


def of_nodes(change: Callable[[dict[str, Any]], object]) -> Change:
    return lambda events: [change(node) for value in values(events, "system") for node in value["nodes"]]


def new_times(events: list[Event]) -> None:
    for value in values(events, "epoch_stop"):
        value["seconds"] += random.Random(value["epoch"]).uniform(0.1, 1.0)


def no_first_loss(events: list[Event]) -> None:
    """A 0 says nothing, and what follows it moves up by one."""
    values(events, "epoch_stop")[0]["loss"] = 0.0


def new_machine(events: list[Event]) -> None:
    """Another start of the machine, and other accelerators."""
    each("init_start", "boot_id", invented)(events)
    of_nodes(lambda node: [device.update(uuid=invented(device["uuid"])) for device in node["accelerators"]])(events)


# The last digits of each loss.
new_losses = each("epoch_stop", "loss", lambda loss: loss + 1e-9)
new_weights = each("replicas", "digest", lambda digest: invented(digest)[:16])
new_checkpoints = each("checkpoint", "sha256", invented)
ALL_BUT_CLOCKS = (new_losses, new_weights, new_checkpoints, new_times)


def clocks_set(*, wall_s: float = 0.0, machine_s: float = 0.0) -> Callable[[list[Event]], None]:
    """Moves a record in time."""

    def change(events: list[Event]) -> None:
        for event in events:
            event["time_ms"] += round(1000 * wall_s)
            event["clock_s"] += machine_s

    return change


def test_a_first_line_of_ones_own_makes_no_run_ones_own(own: Path, stolen: Path) -> None:
    assert read_campaign(own).identity != read_campaign(stolen).identity
    found = shared(own, stolen)
    assert found.runs == {f"trial-{number:02d}" for number in range(1, TRIALS + 1)}
    assert (found.every, found.what) == (True, ALL)


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([new_losses], ("times", "weights", "checkpoints", *CLOCKS)),
        ([new_losses, new_machine], ("times", "weights", "checkpoints")),
        ([new_losses, new_weights, new_times, new_machine], ("checkpoints",)),
        ([new_losses, new_checkpoints, new_times, new_machine], ("weights",)),
        ([new_weights, new_checkpoints, new_times, new_machine], ("losses",)),
        ([new_weights, new_checkpoints, new_times, new_machine, no_first_loss], ("losses",)),
        ([new_losses, new_weights, new_checkpoints, new_machine], ("times",)),
        (ALL_BUT_CLOCKS, CLOCKS),
        # A run that is moved in time was on its machine then, by either of its clocks.
        ([*ALL_BUT_CLOCKS, clocks_set(wall_s=86_400.0)], CLOCKS),
        ([*ALL_BUT_CLOCKS, clocks_set(machine_s=86_400.0)], CLOCKS),
        ([*ALL_BUT_CLOCKS, clocks_set(wall_s=20.5, machine_s=20.5)], CLOCKS),
    ],
)
def test_whatever_a_thief_leaves_gives_all_runs_away(
    own: Path, stolen: Path, changes: list[Change], left: tuple[str, ...]
) -> None:
    edit_all(stolen, *changes)
    found = shared(own, stolen)
    assert (found.what, found.every) == (left, True)


def test_runs_that_are_copied_into_a_campaign_of_ones_own_are_named(own: Path, tmp_path: Path) -> None:
    mixed = written(tmp_path, OTHER_SEEDS, start_s=LATER_S)
    for number in (2, 4):
        losses = iter([value["loss"] for value in values(events_of(own, number), "epoch_stop")])
        edit_record(mixed / f"trial-{number:02d}", each("epoch_stop", "loss", lambda _, losses=losses: next(losses)))
    found = shared(own, mixed)
    assert (found.runs, found.every, found.what) == ({"trial-02", "trial-04"}, False, ("losses",))
    assert shared(mixed, own).runs == found.runs


def events_of(campaign: Path, trial: int) -> list[Event]:
    return [json.loads(line) for line in (campaign / f"trial-{trial:02d}" / "events.jsonl").read_bytes().splitlines()]


def test_two_campaigns_of_one_machine_one_after_the_other_share_nothing(own: Path, tmp_path: Path) -> None:
    assert shared(own, written(tmp_path, OTHER_SEEDS, start_s=LATER_S)) is None


def test_runs_that_begin_when_others_end_share_nothing_though_clocks_of_nodes_differ(own: Path, tmp_path: Path) -> None:
    last_s = events_of(own, TRIALS)[-1]["time_ms"] / 1000
    # The first run of a campaign begins two minutes after its journal.
    other = written(tmp_path, OTHER_SEEDS, start_s=last_s + 600 - 125 - 20)
    assert events_of(other, 1)[0]["time_ms"] / 1000 < last_s
    assert shared(own, other) is None


def test_two_campaigns_at_one_time_share_nothing_if_each_has_its_own_accelerators(own: Path, tmp_path: Path) -> None:
    """They tell of one start of one machine: the written one has as many accelerators as it has names for hosts."""
    other = written(tmp_path, OTHER_SEEDS, hosts=("node-1b", "node-2b"))
    assert shared(own, other) is None
    edit_all(other, of_nodes(lambda node: node.update(accelerators=[])))
    assert shared(own, other).what == CLOCKS, "on the processors of one machine they are told"


def test_a_machine_that_computes_alike_repeats_what_it_learnt_and_not_its_times(own: Path, tmp_path: Path) -> None:
    """The same seeds again: `replicate --same-seeds` does that, and has measured anew."""
    found = shared(own, written(tmp_path, start_s=LATER_S, images_per_second=40_100.0))
    assert (found.what, bool(found.measured)) == (("losses", "weights", "checkpoints"), False)


def test_of_thousands_of_accelerators_some_are_kept(own: Path, stolen: Path) -> None:
    many = of_nodes(lambda node: node.update(accelerators=[{"uuid": f"{node['host']} {n}"} for n in range(4000)]))
    copy = copy_campaign(own, stolen.parent / "copy")
    edit_all(copy, new_machine, many)
    edit_all(stolen, new_machine, many, *ALL_BUT_CLOCKS)
    both = [runs_of(copy), runs_of(stolen)]
    assert shared_runs(both)[0][1].what == CLOCKS
    assert max(len(run.model_dump_json()) for runs in both for run in runs.values()) < 3000


# What `hpcai500 rank` makes of it, with campaigns that are whole: 10 runs of 90 epochs.


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An honest submission, the same without names of hosts, and what a thief has made of it."""
    folder = tmp_path_factory.mktemp("bundles")
    for name in ("owner", "thief"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    campaign = write_campaign(folder / "campaign", trials=10)
    made = {name: folder / f"{name}.zip" for name in ("own", "nameless", "theft")}
    pack(SubmitRequest(campaign, made["own"], "Aurora", "A laboratory", key=folder / "owner"))
    pack(SubmitRequest(campaign, made["nameless"], "Aurora", "A laboratory", key=folder / "owner", anonymise=True))
    bundle = copy_of(unpack(made["own"], folder / "opened", folder / "thief"), folder / "stolen")
    bundle.manifest |= {"system": "Borealis", "organisation": "A thief"}
    edit_journal(bundle.campaign, first_line_of_a_thief)
    bundle.pack(made["theft"])
    return made


def statuses(ranking: Ranking) -> dict[str, str]:
    ranked = {one.entry.examined.file.name: "ranked" for group in ranking.groups for one in group.entries}
    return ranked | {one.examined.file.name: one.status for one in ranking.unranked}


def test_two_who_claim_the_same_runs_are_both_disputed(bundles: dict[str, Path]) -> None:
    ranking = make_ranking([bundles["own"], bundles["theft"]])
    assert statuses(ranking) == {"own.zip": "disputed", "theft.zip": "disputed"}
    reasons = {one["file"].rpartition("/")[2]: one["reason"] for one in ranking_document(ranking)["unverified"]}
    for name, other in (("own", "theft"), ("theft", "own")):
        assert reasons[f"{name}.zip"].startswith(f"10 of 10 runs are those of {other}.zip, signed with SHA256:")
    assert f"(the same {', '.join(ALL)})" in reasons["theft.zip"]
    assert reasons["own.zip"].endswith("; to decide, leave one file out, or its key out of --signers")


def test_whoever_a_site_has_shown_keeps_the_place_when_a_thief_comes(bundles: dict[str, Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert statuses(make_ranking([bundles["own"]], site=site)) == {"own.zip": "ranked"}
    kept = (site / "runs.json").read_text()
    assert len(kept) < 100_000
    for private in ("GPU-", "5f0c1c1e", "node-1", str(tmp_path)):
        assert private not in kept
    ranking = make_ranking([bundles["own"], bundles["theft"]], site=site)
    assert statuses(ranking) == {"own.zip": "ranked", "theft.zip": "disputed"}
    [entry] = ranking_document(ranking)["entries"]
    assert entry["claimed_by"][0].startswith("theft.zip, signed with SHA256:")
    [page] = [
        text
        for path in (site / "submissions").glob("*.html")
        if "VERIFIED, RANK 1" in (text := path.read_text())
    ]  # fmt: skip
    assert "also claimed by theft.zip" in page
    # Left out, the owner is not forgotten, however often the thief comes.
    for _ in range(2):
        alone = make_ranking([bundles["theft"]], site=site)
        assert statuses(alone) == {"theft.zip": "disputed"}
        assert "are those of Aurora, which the site has shown, signed with" in alone.unranked[0].reason
    (site / "runs.json").write_text(kept[:500])
    with pytest.raises(
        UsageError, match=r"runs.json: damaged at .*; restore a copy of it, or give --html a new folder"
    ):
        make_ranking([bundles["own"]], site=site)
    (site / "runs.json").unlink()
    with pytest.raises(UsageError, match=r"runs.json: No such file .*; restore a copy of it"):
        make_ranking([bundles["own"]], site=site)


def test_one_campaign_without_names_of_hosts_is_told_twice(bundles: dict[str, Path]) -> None:
    ranking = make_ranking([bundles["own"], bundles["nameless"]])
    assert sorted(statuses(ranking).values()) == ["duplicate", "ranked"]
    assert ranking.unranked[0].reason.startswith("the same campaign as ")
