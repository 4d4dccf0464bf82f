"""`hpcai500 submit`: a campaign in one signed file, for a committee or a customer."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hpcai500.cli.options import Json
from hpcai500.errors import UsageError
from hpcai500.streams import say, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcai500.results.submission.manifest import LeftOut
    from hpcai500.results.submission_check import Checked
    from hpcai500.results.verification.finding import Verification

_MOST_TOLD = 20


def submit(
    campaign: Annotated[Path, typer.Argument(metavar="CAMPAIGN", help="Folder of a campaign (`hpcai500 campaign`).")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The ZIP file to write.")],
    system: Annotated[str, typer.Option(metavar="NAME", help="Name of the system, as a ranking shows it.")],
    organisation: Annotated[str, typer.Option(metavar="NAME", help="Who submits.")],
    contact: Annotated[str | None, typer.Option(metavar="TEXT", help="Whom the committee asks.")] = None,
    level: Annotated[
        Literal["hardware", "system", "free"] | None,
        typer.Option(help="Claim this level, for code that was changed.  [default: what the recipe needs]"),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="SSHKEY", help="OpenSSH key that signs; the .pub file of a key that your agent holds."),
    ] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Sign nothing: no ranking takes it so.")] = False,
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="Replace names of hosts and users, and addresses, wherever they occur.")
    ] = False,
    no_checkpoints: Annotated[
        bool, typer.Option("--no-checkpoints", help="Leave checkpoints out: then nobody can replay the evaluation.")
    ] = False,
    log: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Add a log: of Slurm, of the launcher. May be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Pack a campaign into one file that holds all that verification needs: docs/submission-format.md.

    Plan, journal, the records of all attempts (failed ones too), the last checkpoint of each finished run and the first
    at its target, the sources that ran, and what Slurm's accounting says; with the hash of every file in a manifest
    that your SSH key signs:

    hpcai500 submit runs/campaign -o mysystem.zip --system "My System" --organisation "My Site" --key ~/.ssh/id_ed25519

    Level and metrics are computed from the events. Whoever changed code of layers 5-8 claims --level system or free:
    records do not show it, verification sees it (docs/verification.md). A looser level than needed may be claimed, a
    stricter one is refused. A campaign that is not rankable can be submitted, and says so.
    Before the file gets its name, it is verified as by `hpcai500 verify FILE`. If that refuses it, the findings are
    told, nothing is kept, and the exit code is 2.
    """
    _require_choice(campaign, output, key, unsigned=unsigned)
    from hpcai500.progress import track  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.submission.pack import SubmitRequest  # noqa: PLC0415
    from hpcai500.results.submission_check import RefusedError, pack_verified  # noqa: PLC0415

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
        say(f"{output}: was there, and is replaced")
    if not packed.manifest.claim.rankable:
        say("not rankable: it will be verified, and listed without a rank")


def _require_choice(campaign: Path, output: Path, key: Path | None, *, unsigned: bool) -> None:
    if key is not None and unsigned:
        raise UsageError("--key and --unsigned: give one of them")
    if key is None and not unsigned:
        line = f"hpcai500 submit {shlex.quote(str(campaign))} -o {shlex.quote(str(output))} …"
        raise UsageError(
            f"who signs? Make a key once: ssh-keygen -t ed25519 -f ~/.ssh/hpcai500, then: {line} "
            f"--key ~/.ssh/hpcai500; or, for your own eyes: {line} --unsigned"
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
    """What verification found wrong, in its own words."""
    from hpcai500.results.submission_check import failed  # noqa: PLC0415 - keeps `--help` fast

    found = failed(verification)
    shown = [f"  {one.name}: {one.evidence}" for one in found[:_MOST_TOLD]]
    more = [f"  and {len(found) - _MOST_TOLD} more: --json has all of them"] if found[_MOST_TOLD:] else []
    return ["refused     `hpcai500 verify` would say of it:", *shown, *more]


def _lines(checked: Checked) -> list[str]:
    from hpcai500.results.show import with_unit  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.results.submission.gathering import NOT_NEEDED  # noqa: PLC0415

    packed = checked.packed
    manifest, claim = packed.manifest, packed.manifest.claim
    vflops = claim.metrics.get("vflops")
    lines = [
        f"submission  {packed.path} ({packed.bytes} bytes, {len(manifest.files)} files)",
        f"campaign    {manifest.campaign}",
        f"system      {manifest.system}: {manifest.accelerators}; {manifest.framework}",
        f"level       {checked.verification.level or 'none: no level allows what was changed'}",
        f"runs        {vflops.runs if vflops else 0} of {manifest.trials} planned, {manifest.attempts} attempts",
        *([f"vflops      {with_unit('vflops', vflops.mean)}"] if vflops else []),
        f"rankable    {'yes' if claim.rankable else 'no'}",
        *(f"            {reason}" for reason in claim.reasons),
        *_left_out_lines(manifest.left_out, NOT_NEEDED),
        f"signed      {f'by {packed.signer.fingerprint}' if packed.signer else 'by nobody'}",
        f"verified    {_verdict(checked)}",
    ]
    if manifest.anonymised:
        count = manifest.anonymised.hosts
        lines.append(f"anonymised  {count} {'name of a host' if count == 1 else 'names of hosts'}")
    return lines


def _verdict(checked: Checked) -> str:
    judged = sum(one.severity == "warning" for one in checked.verification.findings)
    told = "yes, all but the signature, which is missing" if checked.packed.signer is None else "yes"
    return f"{told}; {judged} to be judged: see `hpcai500 verify {checked.packed.path}`" if judged else told


def _left_out_lines(left_out: Sequence[LeftOut], usual: str) -> Iterator[str]:
    """A line for each reason; that older checkpoints stay out is so in every submission."""
    reasons: dict[str, list[str]] = {}
    for one in left_out:
        if one.reason != usual:
            reasons.setdefault(one.reason, []).append(one.path)
    for reason, paths in reasons.items():
        yield f"left out    {paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {reason}"
