"""Writes docs/submission-format.md from the schema that submissions are read by: the two cannot drift apart.

python -m hpcai500.results.submission.format_page > docs/submission-format.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcai500.results.submission import manifest
from hpcai500.results.submission.manifest import KINDS, Manifest
from hpcai500.toml_source import MOST_DOTS

# ----------------------------------------------------------------------------------------------------
# The text around the generated tables.


BEFORE = """\
# The format of submissions

<!-- Written by `python -m hpcai500.results.submission.format_page > docs/submission-format.md`: change that. -->

A submission is one campaign in one ZIP file, with all that is needed to compute its result again, and nothing that
anyone has to believe:

    hpcai500 submit runs/campaign -o mysystem.zip --system "My System" --organisation "My Site" --key ~/.ssh/id_ed25519
    hpcai500 verify mysystem.zip

`submit` computes level, metrics and whether the campaign is rankable from the events of its runs, packs, signs, and
verifies what it wrote as `verify` does. What is refused gets no name: the findings are told, a file that was there
stays, and the exit code is 2. One that shall be `--unsigned` may lack the signature and nothing else. Only a regular
file is replaced, and that is said. The same campaign gives the same bytes, apart from `created`.
Level, reasons and metrics are a claim: `verify` computes them again.

The level is the one that the recipe needs. Code that was changed can need another, which no record tells: whoever
changed code of layers 5 to 8 ([verification.md](verification.md)) adds `--level system` or `--level free`. `verify`
compares the sources and refuses a level that is too strict; a looser one than needed may be claimed.

## Files

`RECORD` is `trial-01`, `trial-01-attempt-2`, …: every attempt is there, failed and stopped ones too. A file of any
other name is refused, and so is one that the manifest does not name.
"""

AFTER = """\
Other ZIP files than `submit` writes are refused too, because two programs could read them differently: files that do
not lie back to back, bytes that belong to none, comments, extra fields, encryption, links, folders, other compression
than deflate, names that come twice in any case of letters, and headers that do not agree. JSON may not hold NaN,
numbers beyond 64 bits, keys that come twice in one object, or halves of surrogate pairs. All that is counted is
counted before it is read: a ZIP bomb or a log of a million events costs no memory. Opening takes at most 1 GiB.

Checkpoints are hashed and stay in the ZIP; `verify --replay` takes out those of one trial at a time.

## Signature

`manifest.json.sig` is an OpenSSH signature (`ssh-keygen -Y`, namespace `hpcai500`) of `manifest.json`, byte by byte.
As the manifest holds the SHA-256 of every other file, it stands for all of them. Any SSH key will do; make one for this
by `ssh-keygen -t ed25519 -f ~/.ssh/hpcai500`. In a batch job nobody can type a passphrase: give `--key` the `.pub` file
of a key that your agent holds. Tell the committee the fingerprint that `submit` prints, by another way than the file.

The committee keeps a file of keys (`man ssh-keygen`, ALLOWED SIGNERS), a line for each submitter:

    someone@site.example namespaces="hpcai500" ssh-ed25519 AAAA…

and `hpcai500 verify --signers FILE` tells whose key it was. A signature says who stands for a submission; it does not
make a false number true.

## Accounting

`accounting/JOB.json` is what `sacct` says of a job that the journal names:
`job_id`, `submit`, `start`, `end` (UTC), `elapsed_seconds`, `nodes`, `node_list`, `state`, `exit_code`, and the same of
its `steps` and of `earlier` runs of a job that went back to the queue. Users and accounts are not asked for. Where
there is no `sacct`, `left_out` says so.

## --anonymise

Replaced are, wherever they occur as whole words in any case of letters: names of hosts, short and fully qualified, also
in Slurm's lists (`n[01-04]`, which are written out), in names of files, commands, accounting and logs; domains of these
hosts; names of users and their home folders; IP and MAC addresses. The same name becomes the same word everywhere
(`node-001`, `domain-001`, `user-001`, `address-001`), and hosts keep their order.

Names of organisation and system are what you give. Sources (public), checkpoints and pictures (numbers) are not
changed. Traces over 64 MiB, and those that are not JSON, are left out, with the reason in `left_out`. GPUs keep their
UUIDs and jobs their numbers, which tell nobody outside of the site anything; without them nobody could see whether two
runs used the same devices. In a log the end of a line that a crash cut off is dropped.

Events are chained by hashes, so all chains are computed again: `prev` of each line, the heads that the journal has of
records and records of the journal, `DONE`, the hashes of files whose names or content changed, and with the first line
of the journal the campaign's identity. All bindings hold as before, and one that was broken stays broken: no hash is
made to fit. Numbers and times are untouched, and `submit` refuses if level or any metric came out otherwise.

`anonymised` keeps the original identity of the campaign (a committee may have it on file from before the first run) and
the hash of the last line of each original log. So what was submitted anonymously can be shown in the open later:
whoever has the originals proves by these hashes that they were there, unchanged, on the day of the submission.
"""


# ----------------------------------------------------------------------------------------------------
# The tables and the page.


_LIMITS = (
    ("files", manifest.MOST_ENTRIES, "what ZIP counts without its 64-bit form"),
    ("bytes without checkpoints", manifest.MOST_EXTRACTED_BYTES, "ten records of a thousand nodes take 1 GB"),
    ("unpacked to packed bytes", manifest.HIGHEST_RATIO, "descriptions of a thousand equal nodes reach 136"),
    ("characters of a path", manifest.LONGEST_PATH, ""),
    ("events of a log", manifest.MOST_EVENTS, "90 epochs and a hundred resumptions make fewer than 10,000"),
    ("bytes of an event", manifest.LINE_BYTES, "the description of a thousand nodes"),
    ("JSON values of a file", manifest.MOST_VALUES, "a thousand nodes of 1,500 values each, twice"),
    ("JSON values of all files", manifest.MOST_VALUES_IN_ALL, "ten such records"),
    ("levels of JSON", manifest.DEEPEST, "events have 8"),
    ("dots in a line of a recipe", MOST_DOTS, "keys have 2 parts, and numbers have dots"),
    ("samples of a power file", manifest.POWER_ROWS, "a day of ten a second has 864,000"),
)


def format_page() -> str:
    """Return the content of docs/submission-format.md."""
    schema = Manifest.model_json_schema(by_alias=True)
    return "\n".join([BEFORE, *_layout(), "", "## manifest.json", "", *_tables(schema), *_limits(), "", AFTER])


def _layout() -> Iterator[str]:
    yield "| file | at most | holds |"
    yield "|---|---|---|"
    for kind in KINDS:
        yield f"| `{kind.shown}` | {_size(kind.most_bytes)} | {kind.meaning} |"


def _limits() -> Iterator[str]:
    yield "## What is refused unread"
    yield ""
    yield "| of | at most | because |"
    yield "|---|---|---|"
    for what, number, reason in _LIMITS:
        yield f"| {what} | {number:,} | {reason} |"


def _size(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size // manifest.MIB} MiB" if size >= manifest.MIB else f"{size // manifest.KIB} KiB"


def _tables(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table for the manifest, then one for each of its parts, in order of their first mention."""
    waiting, done = [("", schema)], set[str]()
    while waiting:
        name, table = waiting.pop(0)
        if name:
            yield from (f"### {name}", "", str(table.get("description", "")).replace("\n", " "), "")
        yield "| field | type | meaning |"
        yield "|---|---|---|"
        for field, about in table["properties"].items():
            yield f"| `{field}` | {_type(about)} | {about.get('description', '')} |"
            for other in _references(about):
                if other not in done:
                    done.add(other)
                    waiting.append((other, schema["$defs"][other]))
        yield ""


def _references(about: Any) -> Iterator[str]:
    if isinstance(about, dict):
        if "$ref" in about:
            yield about["$ref"].rpartition("/")[2]
        for inner in about.values():
            yield from _references(inner)
    elif isinstance(about, list):
        for inner in about:
            yield from _references(inner)


def _type(about: Mapping[str, Any]) -> str:
    if "$ref" in about:
        return str(about["$ref"].rpartition("/")[2])
    if "anyOf" in about:
        return " or ".join(_type(one) for one in about["anyOf"])
    values = about.get("enum", [about["const"]] if "const" in about else [])
    return ", ".join(f"`{value}`" for value in values) or _plain_type(about)


def _plain_type(about: Mapping[str, Any]) -> str:
    if about["type"] == "array":
        return f"list of {_type(about['items'])}"
    if about["type"] == "object":
        return f"table of {_type(about['additionalProperties'])} by name"
    is_hash = about.get("pattern", "").startswith("^[0-9a-f]{64}")
    return "SHA-256" if is_hash else f"{about['type']}{_bounds(about)}"


def _bounds(about: Mapping[str, Any]) -> str:
    if "minimum" in about:
        return f", at least {about['minimum']}"
    return f", at most {about['maxLength']} characters" if "maxLength" in about else ""


if __name__ == "__main__":
    print(format_page(), end="")  # noqa: T201
