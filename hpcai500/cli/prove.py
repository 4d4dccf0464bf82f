"""Commands for evidence: `submit` a campaign, `verify` a submission, and `replicate` it elsewhere."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hpcai500.cli.options import Heads, Json, Registered, Set, say_next
from hpcai500.errors import UsageError
from hpcai500.files import why_not
from hpcai500.streams import say, show
from hpcai500.text import count, next_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcai500.layers import Hardware
    from hpcai500.results.submission.manifest import LeftOut
    from hpcai500.results.submission_check import Checked
    from hpcai500.results.verification.context import Check
    from hpcai500.results.verification.finding import Verification


# ----------------------------------------------------------------------------------------------------
# `hpcai500 submit`: a campaign in one signed file, for a committee or a customer.


_MOST_SHOWN = 20


def submit(
    campaign: Annotated[Path, typer.Argument(metavar="CAMPAIGN", help="Folder of a campaign (`hpcai500 campaign`).")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The ZIP file to write.")],
    system: Annotated[str, typer.Option(metavar="NAME", help="Name of the system, as a ranking shows it.")],
    organisation: Annotated[str, typer.Option(metavar="NAME", help="Who submits.")],
    contact: Annotated[str | None, typer.Option(metavar="TEXT", help="Contact for the committee.")] = None,
    level: Annotated[
        Literal["hardware", "system", "free"] | None,
        typer.Option(help="Claim this level, if you changed code.  [default: the level of the recipe]"),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="SSHKEY", help="OpenSSH key to sign with, or the .pub file of a key in your agent."),
    ] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Do not sign: no ranking accepts it.")] = False,
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="Replace names of hosts and users, and addresses, everywhere.")
    ] = False,
    no_checkpoints: Annotated[
        bool, typer.Option("--no-checkpoints", help="Leave out checkpoints; the evaluation cannot be replayed then.")
    ] = False,
    log: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Add a log of Slurm or the launcher. May be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Pack a campaign into one file with everything that verification needs: docs/submission-format.md.

    It contains plan, journal, the records of all attempts (also failed ones), the last checkpoint of each finished run
    and the first at its target, the sources that ran, and the data of Slurm's accounting; and a manifest with the hash
    of every file, which your SSH key signs:

    hpcai500 submit runs/campaign -o mysystem.zip --system "My System" --organisation "My Site" --key ~/.ssh/id_ed25519

    Level and metrics are computed from the events. If you changed code of layers 5-8, claim --level system or free:
    records do not show such changes, but verification does (docs/verification.md). You may claim a looser level than
    needed; a stricter one is refused. A campaign that is not rankable can be submitted, and says so.
    The file is first verified as by `hpcai500 verify FILE`. If it is refused, the findings are printed, no file is
    written, and the exit code is 2.
    """
    _require_choice(campaign, output, key, unsigned=unsigned)
    from hpcai500.progress import track  # keeps `--help` fast
    from hpcai500.results.submission.pack import SubmitRequest
    from hpcai500.results.submission_check import RefusedError, pack_verified

    request = SubmitRequest(
        campaign,
        output,
        system,
        organisation,
        contact,
        level,
        key,
        anonymise=anonymise,
        checkpoints=not no_checkpoints,
        logs=log or [],
    )
    replaces = output.is_file()
    try:
        checked = pack_verified(request, track)
    except RefusedError as error:
        document = {"file": None, "verification": error.verification.document()}
        show(document if as_json else _refused_lines(error.verification))
        raise
    packed = checked.packed
    show(_document(checked) if as_json else _lines(checked))
    if replaces:
        say(f"{output}: existing file replaced")
    if not packed.manifest.claim.rankable:
        say("not rankable: it will be verified, and listed without a rank")
    if not as_json:
        steps = (
            (("verify", output), "check it as the recipient will"),
            (("rank", output, "--html", "site"), "as a ranking"),
        )
        say_next(next_lines(steps))


def _require_choice(campaign: Path, output: Path, key: Path | None, *, unsigned: bool) -> None:
    if key is not None and unsigned:
        raise UsageError("--key and --unsigned: give one of them")
    if key is None and not unsigned:
        line = f"hpcai500 submit {shlex.quote(str(campaign))} -o {shlex.quote(str(output))} …"
        raise UsageError(
            f"no key given: make one (ssh-keygen -t ed25519 -f ~/.ssh/hpcai500), then: {line} --key ~/.ssh/hpcai500; "
            "or, for private use, add --unsigned"
        )


def _document(checked: Checked) -> dict[str, Any]:
    packed = checked.packed
    manifest = packed.manifest.model_dump(mode="json", by_alias=True)
    return {
        "file": str(packed.path),
        "bytes": packed.bytes,
        "signer": packed.signer.fingerprint if packed.signer else None,
        "files": len(manifest.pop("files")),
        **{key: value for key, value in manifest.items() if key != "schema"},
        "verification": checked.verification.document(),
    }


def _refused_lines(verification: Verification) -> list[str]:
    """The failures that verification found."""
    found = verification.failures
    shown = [f"  {one.name}: {one.evidence}" for one in found[:_MOST_SHOWN]]
    more = [f"  and {len(found) - _MOST_SHOWN} more: --json has all of them"] if found[_MOST_SHOWN:] else []
    return ["refused     `hpcai500 verify` would report:", *shown, *more]


def _lines(checked: Checked) -> list[str]:
    from hpcai500.results.outcome import with_unit  # keeps `--help` fast
    from hpcai500.results.submission.gather import NOT_NEEDED

    packed = checked.packed
    manifest, claim = packed.manifest, packed.manifest.claim
    vflops = claim.metrics.get("vflops")
    lines = [
        f"submission  {packed.path} ({packed.bytes} bytes, {len(manifest.files)} files)",
        f"campaign    {manifest.campaign}",
        f"system      {manifest.system}: {manifest.accelerators_in_words}; {manifest.framework}",
        f"level       {checked.verification.level or 'none'}",
        f"runs        {max((one.runs for one in claim.metrics.values()), default=0)} of {manifest.trials} planned, "
        f"{count(manifest.attempts, 'attempt')}",
        *([f"vflops      {with_unit('vflops', vflops.mean)}"] if vflops else []),
        f"rankable    {'yes' if claim.rankable else 'no'}",
        *(f"            {reason}" for reason in claim.reasons),
        *_left_out_lines(manifest.left_out, NOT_NEEDED),
        f"signed      {f'by {packed.signer.fingerprint}' if packed.signer else 'no'}",
        f"verified    {_verdict(checked)}",
    ]
    if manifest.anonymised:
        lines.append(f"anonymised  {count(manifest.anonymised.hosts, 'name of a host', 'names of hosts')}")
    return lines


def _verdict(checked: Checked) -> str:
    warnings = sum(one.severity == "warning" for one in checked.verification.findings)
    text = "yes, except for the missing signature" if checked.packed.signer is None else "yes"
    return f"{text}; {count(warnings, 'warning')}: see `hpcai500 verify {checked.packed.path}`" if warnings else text


def _left_out_lines(left_out: Sequence[LeftOut], usual: str) -> Iterator[str]:
    """A line for each reason; the `usual` one, older checkpoints, applies to every submission and is not shown."""
    reasons: dict[str, list[str]] = {}
    for one in left_out:
        if one.reason != usual:
            reasons.setdefault(one.reason, []).append(one.path)
    for reason, paths in reasons.items():
        yield f"left out    {paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {reason}"


# ----------------------------------------------------------------------------------------------------
# `hpcai500 verify`: check a submission by recomputing all of it.


_DEVICES = ("cpu", "cuda")


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Submission, written by `hpcai500 submit`.")],
    signers: Annotated[
        Path | None,
        typer.Option(metavar="ALLOWED_SIGNERS", help="Trusted keys: an OpenSSH file. Others are refused."),
    ] = None,
    registered: Registered = None,
    heads: Heads = None,
    edition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Score by this edition of the rules.  [default: the claimed one]")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="DATA", help="Evaluate checkpoints of the trials again on this data set.")
    ] = None,
    replay_trials: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="With --replay: K trials, drawn at random.  [default: all]")
    ] = None,
    held_back: Annotated[
        Path | None,
        typer.Option(metavar="DATA", help="With --replay: evaluate on this secret data set, too."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda", help="With --replay: device to use instead of the recipe's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a submission offline, using only its file: docs/verification.md lists the checks.

    It checks signature, manifest and hash chains; journal, seeds and recipes; results, energy, level and claim,
    recomputed from the events; clocks, samples, rates and ceilings of each run; and each source file that ran. Exit
    code 0 if all checks pass, 2 if any fails.
    """
    from hpcai500.campaign.journal import read_heads  # keeps `--help` fast
    from hpcai500.progress import track
    from hpcai500.results.verification.verify import verification_lines, verify_submission

    if replay is None and any(one is not None for one in (replay_trials, held_back, device)):
        raise UsageError("--replay-trials, --held-back and --device are for replays only: add --replay DATA")
    if device not in (None, *_DEVICES):
        raise UsageError(f"--device: expected {' or '.join(_DEVICES)}, got {device}")
    verification = verify_submission(
        file,
        signers=signers,
        registered=_identity(registered),
        heads=read_heads(heads) if heads else None,
        edition=edition,
        replay=_replays(replay, replay_trials, held_back, device),
        tracker=track,
    )
    document = verification.document()
    lines = verification_lines(
        file,
        verification,
        replayed=replay is not None,
        registered=registered is not None,
        heads=heads is not None,
        width=shutil.get_terminal_size((100, 24)).columns,
    )
    show(document if as_json else lines)
    if not as_json and verification.verdict == "verified":
        steps = (
            (("rank", file, "--html", "site"), "its place, as a web site"),
            (("replicate", file, "-o", f"{file.stem}-replication"), "repeat it here"),
        )
        say_next(next_lines(steps))
    raise typer.Exit(verification.exit_code)


def _identity(registered: str | None) -> str | None:
    """The hash in the form that campaigns write.

    Raises:
        UsageError: it is not a hash.
    """
    if registered is None:
        return None
    identity = registered.strip().lower()
    if re.fullmatch(r"[0-9a-f]{64}", identity):
        return identity
    other = re.search(r"[^0-9a-f]", identity)
    what = f"{other[0]!r} is not a hex digit" if other else f"has {len(identity)} hex digits"
    raise UsageError(
        f"--registered {registered}: {what}; expected 64 hex digits, as `hpcai500 campaign status` shows them"
    )


def _replays(data: Path | None, trials: int | None, held_back: Path | None, device: str | None) -> Check | None:
    if data is None:
        return None
    for option, folder in (("--replay", data), ("--held-back", held_back)):
        if folder is not None and (why := why_not("folder", folder)):
            raise UsageError(f"{option} {folder}: {why}; give the folder of the data set, as for a run")
    if held_back is not None and held_back.resolve() == data.resolve():
        raise UsageError(f"--held-back {held_back}: the same as --replay; give a set that the submitter does not have")
    from hpcai500.launch.measuring import replay_checkpoint
    from hpcai500.results.verification.replay import replay_check

    return replay_check(partial(replay_checkpoint, data=data, held_back=held_back, device=device), trials)


# ----------------------------------------------------------------------------------------------------
# `hpcai500 replicate`: repeat a submission, and compare the results.


def replicate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The original, written by `hpcai500 submit`.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Folder to set up.  [default: FILE-replication, beside it]"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the same data set here. Not needed for synthetic data.")
    ] = None,
    set_: Set = None,
    same_seeds: Annotated[
        bool, typer.Option("--same-seeds", help="Use the original's seeds.  [default: new ones]")
    ] = False,
    repetition: Annotated[
        Path | None,
        typer.Option("--with", metavar="CAMPAIGN|FILE", help="Compare with this repetition; set up nothing."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="With --with: tolerance of speed, as a share of the original.")
    ] = 0.05,
    quality_tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="With --with: tolerance of quality.  [default: the change that changes VFLOPS by --tolerance; for a "
            "loss, --tolerance]",
        ),
    ] = None,
    signers: Annotated[
        Path | None, typer.Option(metavar="ALLOWED_SIGNERS", help="Trusted keys: others are refused.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Repeat a submission, on the same system or another one: docs/replication.md.

    The submission is verified first, as by `hpcai500 verify`. Then DIR gets its recipe, a new campaign with the same
    number of runs, and a README.md with the image and version to get, the fingerprint of the data, the commands to run,
    and the differences to this system. For another system, use --set hardware.nodes=2 and the like.

    When the runs are done, --with compares: means and variations of both, the difference of the means with its 95 %
    interval, and a verdict. Exit code 0 if it is `replicated`; 2 if it is not, or if the data does not decide it.
    """
    if repetition is None:
        _lay_out(file, output, data, set_ or [], same_seeds=same_seeds, signers=signers, as_json=as_json)
        return
    for option, given in (("-o", output), ("--data", data), ("--set", set_), ("--same-seeds", same_seeds)):
        if given:
            raise UsageError(f"--with only compares: leave out {option}")
    from hpcai500.progress import track  # keeps `--help` fast
    from hpcai500.results.replication.comparison import compare_sides, read_side, read_submission, replication_lines

    # Check it before the original is verified, which takes a while.
    if not repetition.exists():
        raise UsageError(f"--with {repetition}: no such campaign (its folder) or submission (its file)")
    original = read_submission(file, signers, track)
    found = compare_sides(original, read_side(repetition, signers, track), tolerance, quality_tolerance)
    show(found.document() if as_json else replication_lines(found))
    raise typer.Exit(found.exit_code)


def _lay_out(
    file: Path,
    output: Path | None,
    data: Path | None,
    settings: list[str],
    *,
    same_seeds: bool,
    signers: Path | None,
    as_json: bool,
) -> None:
    from hpcai500.progress import track  # keeps `--help` fast
    from hpcai500.results.replication.comparison import read_submission, require_data
    from hpcai500.results.replication.plan import PlanRequest, plan_replication, this_system

    original = read_submission(file, signers, track)
    if warning := require_data(original, data):
        say(f"warning: {warning}")
    folder = output or file.with_name(f"{file.stem}-replication")
    request = PlanRequest(folder, data, settings, same_seeds)
    plan = plan_replication(original, request, this_system(), _launch_line)
    document = {
        "folder": str(plan.folder),
        "campaign": str(plan.campaign.path),
        "identity": plan.campaign.identity,
        "trials": [{"trial": one.trial, "seed": one.seed} for one in plan.campaign.trials],
        "guide": str(plan.guide),
    }
    lines = [
        f"verified    {file}",
        f"campaign    {plan.campaign.path}: {len(plan.campaign.trials)} runs planned",
        f"identity    {plan.campaign.identity}",
        f"guide       {plan.guide}",
    ]
    show(document if as_json else lines)


def _launch_line(launcher: str, hardware: Hardware, campaign: Path) -> str:
    """The command that runs `campaign`; the user replaces placeholders of host names, if the launcher needs them."""
    from hpcai500.launch.layout import Layout, horovodrun, mpirun, srun, torchrun

    nodes, per_node = hardware.nodes, hardware.accelerators_per_node
    command = ["hpcai500", "campaign", "run", str(campaign)]
    hosts = [f"HOST{number}" for number in range(1, nodes + 1)] if nodes > 1 else []
    layout = Layout(nodes, per_node, total=hardware.ranks or None)
    match launcher:
        case "srun" | "slurm":
            tokens = srun(layout, command)
        case "mpirun":
            tokens = mpirun(replace(layout, hosts=hosts), command)
        case "horovodrun":
            tokens = horovodrun(replace(layout, hosts=hosts), command)
        case "torchrun":
            tokens = torchrun(replace(layout, hosts=hosts), command)
        case _:
            tokens = [*command, *(["--procs", str(per_node)] if nodes == 1 and per_node > 1 else [])]
            tokens = srun(layout, command) if nodes > 1 else tokens
    return shlex.join(tokens)
