"""Signs submissions with OpenSSH keys (`ssh-keygen -Y`), and checks signatures."""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from hpcai500.errors import EnvironmentLacksError, RunError, UsageError, WrongAnswerError
from hpcai500.files import why_not
from hpcai500.results.submission.manifest import MANIFEST, NAMESPACE, SIGNATURE_BYTES
from hpcai500.streams import escaped

# A key on a hardware token waits for a touch at most so long.
_TIMEOUT_SECONDS = 60.0
_FINGERPRINT = re.compile(r"\b(?:SHA256|SHA512|MD5):[A-Za-z0-9+/=:]+")
_UNKNOWN_OPTION = re.compile(r"(?:unknown|illegal|invalid) option|Unsupported operation", re.IGNORECASE)
# PRINCIPALS [OPTIONS] KEYTYPE KEY [COMMENT]; principals and values of options may be quoted (`man ssh-keygen`).
_PRINCIPALS, _OPTIONS = r'("[^"]+"|[^\s"]+)', r'((?:[^\s"]|"(?:\\.|[^"\\])*")+)'
_ALLOWED_SIGNER = re.compile(rf"{_PRINCIPALS}[ \t]+(?:{_OPTIONS}[ \t]+)?([a-z][\w.@-]+)[ \t]+([\w+/]+=*)(?:\s|$)")
_OPTION = re.compile(r'([\w-]+)(?:="((?:\\.|[^"\\])*)")?(?:,|$)')
# YYYYMMDD, YYYYMMDDHHMM and YYYYMMDDHHMMSS by length; a trailing Z means UTC, none the local time zone.
_TIMES = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_MAKE = "make one with `ssh-keygen -t ed25519 -f FILE`"


@dataclass(frozen=True)
class Signer:
    """The key that signed, and its owner.

    Attributes:
        fingerprint: as `ssh-keygen -l` shows it.
        identity: the owner by the file of signers; None without such a file, or if the key is not in it.
        trusted: whether the file of signers makes the key valid.
        refused: why a key in the file of signers is not valid; None otherwise.
    """

    fingerprint: str
    identity: str | None = None
    trusted: bool = False
    refused: str | None = None


@dataclass(frozen=True)
class _Listed:
    who: str
    options: Mapping[str, str]
    key: bytes

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` shows it."""
        return f"SHA256:{base64.b64encode(hashlib.sha256(self.key).digest()).decode().rstrip('=')}"


def sign(path: Path, key: Path) -> bytes:
    """Sign the file `path` with `key`: a private key, or the .pub file of one that an agent holds.

    Raises:
        UsageError: the key cannot be used.
        EnvironmentLacksError: ssh-keygen is missing or too old.
    """
    if why := why_not("file", key):
        raise UsageError(f"--key {key}: {why}; {_MAKE}, or give the .pub file of a key that your agent holds")
    with _beside(path.read_bytes()) as copy:
        ended = _ssh_keygen(["sign", "-n", NAMESPACE, "-f", str(key.absolute()), str(copy)], may_ask=_has_terminal())
        signature = copy.with_name(f"{copy.name}.sig")
        if ended.returncode != 0 or not signature.is_file():
            raise UsageError(f"--key {key}: cannot sign: {_why_not_signed(ended, key)}")
        return signature.read_bytes()


def check_signature(content: bytes, signature: bytes, signers: Path | None = None, name: str = MANIFEST) -> Signer:
    """Return the signer of `content`.

    A key with a limited validity must be valid now: a signature has no date, and a signer can write any time into a
    manifest.

    Args:
        signature: in OpenSSH's armour.
        signers: file of trusted keys (`man ssh-keygen`, ALLOWED SIGNERS); None trusts no key.
        name: of the file with `content`, for messages.

    Raises:
        WrongAnswerError: it is not a signature of this content.
        UsageError: the file of signers cannot be read, or has no signer.
        EnvironmentLacksError: ssh-keygen is missing or too old.
    """
    if len(signature) > SIGNATURE_BYTES:
        raise WrongAnswerError(f"the signature has {len(signature)} bytes, expected at most {SIGNATURE_BYTES}")
    if signers is not None:
        require_signers(signers)
    with _beside(signature) as armour:
        named = ["-n", NAMESPACE, "-s", str(armour)]
        ended = _ssh_keygen(["check-novalidate", *named], content)
        found = _FINGERPRINT.search(ended.stdout.decode(errors="replace"))
        if ended.returncode != 0 or found is None:
            raise WrongAnswerError(f"the signature is not valid for {name}: {_last_line(ended)}")
        identity = _identity(content, armour, signers) if signers else None
    refused = _why_refused(found.group(), signers) if signers and identity is None else None
    return Signer(found.group(), identity, trusted=identity is not None, refused=refused)


def require_signers(signers: Path) -> None:
    """Require at least one signer in the file, as otherwise every key would look unknown.

    Raises:
        UsageError: it cannot be read, or no line has a signer and a key.
    """
    expected = f'NAME namespaces="{NAMESPACE}" KEY'
    if why := why_not("file", signers):
        raise UsageError(f"--signers {signers}: {why}; expected a file with lines `{expected}`")
    try:
        content = signers.read_bytes()
    except OSError as error:
        raise UsageError(f"--signers {signers}: cannot be read: {error.strerror}") from error
    if content.startswith(codecs.BOM_UTF8):
        raise UsageError(
            f"--signers {signers}: begins with a byte-order mark, so OpenSSH misreads its first line: save it in UTF-8 "
            "without one"
        )
    if any(_listed(signers)):
        return
    lines = [line.strip() for line in content.decode(errors="replace").splitlines()]
    number = next((number for number, line in enumerate(lines, 1) if line and not line.startswith("#")), 1)
    # If a private key was given, name its .pub file: a private key must not get into the list.
    public = f"{signers}.pub" if b"PRIVATE KEY" in content else str(signers)
    typed = f'echo "NAME namespaces=\\"{NAMESPACE}\\" $(cat {shlex.quote(public)})" > signers'
    raise UsageError(f"--signers {signers}:{number}: expected a line `{expected}`; for a .pub file: {typed}")


def listed_keys(signers: Path) -> frozenset[str]:
    """Fingerprints of all keys in a file of signers, whether they are valid now or not."""
    return frozenset(one.fingerprint for _, one in _listed(signers))


def _listed(signers: Path) -> Iterator[tuple[int, _Listed]]:
    """Yield the lines in which OpenSSH finds a key, with their numbers."""
    for number, line in enumerate(signers.read_bytes().decode(errors="replace").splitlines(), 1):
        found = None if line.strip().startswith("#") else _ALLOWED_SIGNER.match(line.strip())
        if found is None:
            continue
        who, options, kind, text = found.groups(default="")
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            continue
        if key.startswith(len(kind).to_bytes(4, "big") + kind.encode()):
            values = {name.lower(): value for name, value in _OPTION.findall(options)}
            yield number, _Listed(who.strip('"'), values, key)


def _why_refused(fingerprint: str, signers: Path) -> str | None:
    """Return why OpenSSH refuses a key that is in `signers`; None if it is not."""
    for number, one in _listed(signers):
        if one.fingerprint == fingerprint:
            return f"a key that {signers}:{number} lists for {one.who}, {_restriction(one)}"
    return None


def _restriction(one: _Listed) -> str:
    now, after, before = datetime.now(UTC), *(_moment(one.options.get(f"valid-{name}")) for name in ("after", "before"))
    today = "a signature has no date, so that the key must be valid today"
    if before is not None and before < now:
        return f"but it expired on {before:%Y-%m-%d %H:%M} UTC (valid-before): {today}; ask for a new signature"
    if after is not None and now < after:
        return f"but it is not valid before {after:%Y-%m-%d %H:%M} UTC (valid-after): {today}"
    if "cert-authority" in one.options:
        return "but as a certificate authority: list the key that signs, without cert-authority"
    namespaces = one.options.get("namespaces")
    if namespaces is not None and not any(fnmatchcase(NAMESPACE, name) for name in namespaces.split(",")):
        return f'but not for the namespace {NAMESPACE} (namespaces="{namespaces}"): add it if this key may sign results'
    return "but OpenSSH cannot parse that line: `man ssh-keygen`, ALLOWED SIGNERS"


def _moment(text: str | None) -> datetime | None:
    """Parse a time in a file of signers; None if it is missing, or OpenSSH does not accept it."""
    digits = (text or "").removesuffix("Z")
    if len(digits) not in _TIMES or not digits.isdecimal():
        return None
    with suppress(ValueError, OverflowError):
        local = datetime.strptime(digits, _TIMES[len(digits)])
        return local.replace(tzinfo=UTC) if digits != text else local.astimezone(UTC)
    return None


def _identity(content: bytes, armour: Path, signers: Path) -> str | None:
    """Return the name in `signers` of the signer, if valid for this namespace and now; None otherwise."""
    file = ["-s", str(armour), "-f", str(signers.absolute())]
    found = _ssh_keygen(["find-principals", *file])
    names = [name for line in found.stdout.decode(errors="replace").splitlines() for name in line.split(",")]
    for name in (name.strip() for name in names):
        if name and not name.startswith("!"):
            checked = _ssh_keygen(["verify", "-n", NAMESPACE, "-I", name, *file], content)
            if checked.returncode == 0:
                return name
    return None


@contextmanager
def _beside(content: bytes) -> Iterator[Path]:
    """A temporary file of `content`: ssh-keygen writes beside the file that it signs, and asks before it replaces."""
    with tempfile.TemporaryDirectory(prefix="hpcai500-sign-") as folder:
        path = Path(folder) / "manifest.json"
        path.write_bytes(content)
        yield path


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _ssh_keygen(
    arguments: Sequence[str], content: bytes = b"", *, may_ask: bool = False
) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise EnvironmentLacksError("ssh-keygen is not installed: install the package openssh-client (openssh-clients)")
    try:
        ended = subprocess.run(
            [program, "-Y", *arguments],
            # ssh-keygen asks for a passphrase at the terminal, if any, and does not read it from here.
            input=content,
            capture_output=True,
            env=_environment(os.environ, may_ask=may_ask),
            start_new_session=not may_ask,
            timeout=None if may_ask else _TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(
            f"ssh-keygen did not answer within {_TIMEOUT_SECONDS:g} s: does the key wait for a touch?"
        ) from error
    except OSError as error:
        raise EnvironmentLacksError(f"{program} cannot be started: {error.strerror}") from error
    if _UNKNOWN_OPTION.search(ended.stderr.decode(errors="replace")):
        raise EnvironmentLacksError(f"{program} is too old to sign: OpenSSH 8.2 or later is needed")
    return ended


def _environment(environment: Mapping[str, str], *, may_ask: bool) -> dict[str, str]:
    """Keep ssh-keygen from opening a window for a passphrase."""
    kept = {name: value for name, value in environment.items() if may_ask or name not in ("DISPLAY", "SSH_ASKPASS")}
    return {**kept, "LC_ALL": "C"} if may_ask else {**kept, "LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"}


def _why_not_signed(ended: subprocess.CompletedProcess[bytes], key: Path) -> str:
    message = _last_line(ended)
    if b"UNPROTECTED" in ended.stderr:
        return "other users can read it: run chmod 600 on it"
    if "passphrase" in message:
        return f"{message}: load the key into an agent (`ssh-add KEY`) and give its .pub file"
    if "No private key found" in message:
        return f"{message}: load the private key into an agent (`ssh-add {key.with_suffix('')}`), or give it as --key"
    if "load public key" in message or "invalid format" in message:
        # ssh-keygen's own message is about a missing .pub file, which misleads.
        return "not an OpenSSH key; make one with `ssh-keygen -t ed25519 -f KEY`"
    return f"{message}: make another key with `ssh-keygen -t ed25519 -f KEY`"


def _last_line(ended: subprocess.CompletedProcess[bytes]) -> str:
    lines = ended.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {ended.returncode}"]
    return escaped(lines[-1].rstrip("\r. "), 200)
