"""`hpcai500 verify`: whether a submission holds when all of it is computed again."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpcai500.cli.options import Heads, Json
from hpcai500.errors import UsageError
from hpcai500.streams import show

if TYPE_CHECKING:
    from hpcai500.results.verification.context import Check

_DEVICES = ("cpu", "cuda")


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `hpcai500 submit` wrote.")],
    signers: Annotated[
        Path | None,
        typer.Option(metavar="ALLOWED_SIGNERS", help="Keys that you vouch for: an OpenSSH file. Others are refused."),
    ] = None,
    registered: Annotated[
        str | None, typer.Option(metavar="HASH", help="Identity of the campaign, from before its first run.")
    ] = None,
    heads: Heads = None,
    edition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Score under these rules.  [default: those that are claimed]")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="DATA", help="Evaluate checkpoints of the trials again on this data set.")
    ] = None,
    replay_trials: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="With --replay: K trials, drawn at random.  [default: all]")
    ] = None,
    held_back: Annotated[
        Path | None,
        typer.Option(metavar="DATA", help="With --replay: evaluate on this data set, too, which nobody else has."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda", help="With --replay: another device than the recipe's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a submission from its file alone, offline: docs/verification.md names each check.

    Signature, manifest and hash chains; journal, seeds and recipes; results, energy, level and claim computed again
    from the events; clocks, samples, rates and ceilings of each run; the sources that ran, file by file. Exit code 0
    if all of it holds, 2 if anything does not.
    """
    from hpcai500.campaign.heads import read_heads  # noqa: PLC0415 - keeps `--help` fast
    from hpcai500.progress import track  # noqa: PLC0415
    from hpcai500.results.verification.show import verification_lines  # noqa: PLC0415
    from hpcai500.results.verification.verify import verify_submission  # noqa: PLC0415

    if replay is None and any(one is not None for one in (replay_trials, held_back, device)):
        raise UsageError("--replay-trials, --held-back and --device say how to replay: add --replay DATA")
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
    raise typer.Exit(verification.exit_code)


def _identity(registered: str | None) -> str | None:
    """The hash as campaigns write it."""
    if registered is None:
        return None
    identity = registered.strip().lower()
    if re.fullmatch(r"[0-9a-f]{64}", identity):
        return identity
    strange = re.search(r"[^0-9a-f]", identity)
    what = f"{strange[0]!r} is no hex digit" if strange else f"has {len(identity)} hex digits"
    raise UsageError(
        f"--registered {registered}: {what}; expected 64 hex digits, as `hpcai500 campaign status` shows them"
    )


def _replays(data: Path | None, trials: int | None, held_back: Path | None, device: str | None) -> Check | None:
    if data is None:
        return None
    for option, folder in (("--replay", data), ("--held-back", held_back)):
        if folder is not None and not folder.is_dir():
            raise UsageError(f"{option} {folder}: no such folder; give that of the data set, as for a run")
    if held_back is not None and held_back.resolve() == data.resolve():
        raise UsageError(f"--held-back {held_back}: that of --replay; give one that whoever submits does not have")
    from hpcai500.launch.replay import replay_checkpoint  # noqa: PLC0415
    from hpcai500.results.verification.replay import replay_check  # noqa: PLC0415

    return replay_check(partial(replay_checkpoint, data=data, held_back=held_back, device=device), trials)
