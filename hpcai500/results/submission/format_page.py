"""Writes docs/submission-format.md from the schema that checks submissions, so that the two always agree.

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

A submission is one campaign in one ZIP file, with everything that verification needs. `hpcai500 submit` writes it:

    hpcai500 submit runs/campaign -o mysystem.zip --system "My System" --organisation "My Site" --key ~/.ssh/id_ed25519
    hpcai500 verify mysystem.zip

`submit` computes level and metrics from the events, packs, signs and verifies. If verification refuses the file,
`submit` prints the findings, writes nothing, and exits with 2. `--unsigned` omits the signature. Except `created`,
the same campaign gives the same bytes.

The recipe gives the level. If you changed code of layers 5 to 8
([verification.md](verification.md#code-and-levels)), add `--level system` or `--level free`. You may claim a looser
level than required.

## Files

`RECORD` is `trial-01`, `trial-01-attempt-2`, …, for every attempt. `verify` refuses any other file.
"""

FIELDS = """\
`text` has at most 1,000 characters. `verify` computes the claim again.
"""

AFTER = """\
Opening takes at most 1 GiB of memory. `verify` also refuses:

- ZIP files with gaps, extra bytes, comments, extra fields, encryption, links, folders, compression other than
  deflate, names that differ only in case, or conflicting headers.
- JSON with NaN, numbers beyond 64 bits, repeated keys, or halves of surrogate pairs.

## Signature

`manifest.json.sig` is an OpenSSH signature (namespace `hpcai500`) of `manifest.json`. Any SSH key will do:
`ssh-keygen -t ed25519 -f ~/.ssh/hpcai500`. In a batch job, give `--key` the `.pub` file of a key that your agent
holds. Send the printed fingerprint to the committee separately. The committee adds a line to its `verify --signers`
file:

    someone@site.example namespaces="hpcai500" ssh-ed25519 AAAA…

## Accounting

`accounting/JOB.json` holds what `sacct` reports on a job of the journal: `job_id`, `submit`, `start`, `end` (UTC),
`elapsed_seconds`, `nodes`, `node_list`, `state`, `exit_code`, `steps`, and `earlier` runs of a requeued job.

## --anonymise

`--anonymise` replaces host names and their domains, user names and home folders, IP and MAC addresses. Each becomes
the same word everywhere (`node-001`, `domain-001`, `user-001`, `address-001`). Sources, checkpoints, pictures,
numbers, UUIDs of GPUs and job numbers stay. Traces over 64 MiB, or not JSON, are left out.

`submit` computes all hash chains and the campaign's identity again. The hashes in `anonymised` can prove the
originals later.
"""


# ----------------------------------------------------------------------------------------------------
# The tables and the page.


_LIMITS = (
    ("files", manifest.MOST_ENTRIES),
    ("bytes without checkpoints", manifest.MOST_EXTRACTED_BYTES),
    ("unpacked to packed bytes", manifest.HIGHEST_RATIO),
    ("characters of a path", manifest.LONGEST_PATH),
    ("events of a log", manifest.MOST_EVENTS),
    ("bytes of an event", manifest.LINE_BYTES),
    ("JSON values of a file", manifest.MOST_VALUES),
    ("JSON values of all files", manifest.MOST_VALUES_IN_ALL),
    ("levels of JSON", manifest.DEEPEST),
    ("dots in a line of a recipe", MOST_DOTS),
    ("samples of a power file", manifest.POWER_ROWS),
)
_TEXT = 1000


def format_page() -> str:
    """Return the content of docs/submission-format.md."""
    schema = Manifest.model_json_schema(by_alias=True)
    fields = ["| field | type | meaning |", "|---|---|---|", *_fields(schema, schema["$defs"])]
    return "\n".join([BEFORE, *_layout(), "", "## manifest.json", "", FIELDS, *fields, "", *_limits(), "", AFTER])


def _layout() -> Iterator[str]:
    yield "| file | at most | content |"
    yield "|---|---|---|"
    for kind in KINDS:
        yield f"| `{kind.shown}` | {_size(kind.most_bytes)} | {kind.meaning} |"


def _limits() -> Iterator[str]:
    yield "## Limits"
    yield ""
    yield "`verify` checks these limits first:"
    yield ""
    yield "| number | at most |"
    yield "|---|---|"
    for what, number in _LIMITS:
        yield f"| {what} | {number:,} |"


def _size(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size // manifest.MIB} MiB" if size >= manifest.MIB else f"{size // manifest.KIB} KiB"


def _fields(table: Mapping[str, Any], parts: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield a row for each field of `table`, followed by the fields of its part, if any."""
    for field, about in table["properties"].items():
        name = prefix + field
        yield f"| `{name}` | {_type(about)} | {about.get('description', '')} |"
        for part, path in _parts(about):
            yield from _fields(parts[part], parts, f"{name}{path}.")


def _parts(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names of the parts in a field, each with the path to it: `[]` in a list, `.NAME` by name."""
    if "$ref" in about:
        yield about["$ref"].rpartition("/")[2], ""
    for one in about.get("anyOf", []):
        yield from _parts(one)
    for key, path in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(about.get(key), dict):
            yield from ((part, path + rest) for part, rest in _parts(about[key]))


def _type(about: Mapping[str, Any]) -> str:
    if "$ref" in about:
        return "table"
    if "anyOf" in about:
        return " or ".join(_type(one) for one in about["anyOf"])
    values = about.get("enum", [about["const"]] if "const" in about else [])
    return ", ".join(f"`{value}`" for value in values) or _plain_type(about)


def _plain_type(about: Mapping[str, Any]) -> str:
    if about["type"] == "array":
        return f"list of {_type(about['items'])}"
    if about["type"] == "object":
        return f"{_type(about['additionalProperties'])} by name"
    if about["type"] == "string":
        is_hash = about.get("pattern", "").startswith("^[0-9a-f]{64}")
        return "SHA-256" if is_hash else f"text{_length(about)}"
    return f"{about['type']}{_least(about)}"


def _length(about: Mapping[str, Any]) -> str:
    longest = about.get("maxLength", _TEXT)
    return "" if longest == _TEXT else f", at most {longest}"


def _least(about: Mapping[str, Any]) -> str:
    return f" ≥ {about['minimum']}" if "minimum" in about else ""


if __name__ == "__main__":
    print(format_page(), end="")  # noqa: T201
