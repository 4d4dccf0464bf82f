"""Signatures by real keys and the real ssh-keygen."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from hpcai500.errors import EnvironmentLacksError, ExitCode, HpcAi500Error, UsageError, WrongAnswerError
from hpcai500.results.submission import signature as module
from hpcai500.results.submission.signature import check_signature, require_signers, sign

CONTENT = b'{"a": 1}\n'


def make_key(path: Path, passphrase: str = "", kind: str = "ed25519") -> Path:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "a test", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


def fingerprint(key: Path) -> str:
    listed = subprocess.run(["ssh-keygen", "-l", "-f", str(key)], check=True, capture_output=True, text=True)
    return listed.stdout.split()[1]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("keys") / "key")


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """What is signed."""
    (tmp_path / "manifest.json").write_bytes(CONTENT)
    return tmp_path / "manifest.json"


@pytest.fixture(scope="module")
def signature(key: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("signed") / "manifest.json"
    path.write_bytes(CONTENT)
    made = sign(path, key)
    assert [one.name for one in path.parent.iterdir()] == ["manifest.json"]
    return made


def test_a_signature_tells_the_key(key: Path, signature: bytes) -> None:
    signer = check_signature(CONTENT, signature)
    assert signer.fingerprint == fingerprint(key)
    assert (signer.identity, signer.trusted) == (None, False)


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_any_kind_of_key_will_do(manifest: Path, kind: str) -> None:
    key = make_key(manifest.with_name("key"), kind=kind)
    assert check_signature(CONTENT, sign(manifest, key)).fingerprint == fingerprint(key)


def test_what_is_no_signature_of_this_content_is_told_in_a_line(key: Path, manifest: Path, signature: bytes) -> None:
    with pytest.raises(WrongAnswerError, match=r"not valid for manifest\.json") as caught:
        check_signature(CONTENT + b" ", signature)
    assert "\n" not in str(caught.value)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", key, manifest], check=True)
    for other in (
        manifest.with_name("manifest.json.sig").read_bytes(),
        *(b"", b"junk", b"-----BEGIN SSH SIGNATURE-----\nAAAA\n", b"\0" * 1000, b"x" * 100_000),
    ):
        with pytest.raises(WrongAnswerError):
            check_signature(CONTENT, other)


def signers_file(path: Path, key: Path, who: str = "us@site.example", options: str = 'namespaces="hpcai500"') -> Path:
    path.write_text(f"{who} {options} {key.with_suffix('.pub').read_text()}")
    return path


@pytest.mark.parametrize("who", ["us@site.example", "us@site.example,them@site.example", "*@site.example"])
def test_a_file_of_signers_tells_who_it_was(key: Path, signature: bytes, tmp_path: Path, who: str) -> None:
    signer = check_signature(CONTENT, signature, signers_file(tmp_path / "signers", key, who))
    assert signer.trusted
    assert signer.identity == who.partition(",")[0]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ('namespaces="git,file"', 'but not for the namespace hpcai500 (namespaces="git,file")'),
        ('namespaces="hpcai500",valid-before="20200101Z"', "it expired on 2020-01-01 00:00 UTC"),
        ('valid-before="202001022359Z",namespaces="hpc*"', "it expired on 2020-01-02 23:59 UTC"),
        ('valid-after="21000101120000Z"', "it is not valid before 2100-01-01 12:00 UTC"),
        ('valid-after="20000101",valid-before="20010101"', "it expired on "),
        ("cert-authority", "but as a certificate authority"),
        ('namespaces="!hpcai500,*"', "but OpenSSH cannot parse that line"),
    ],
)
def test_a_key_that_is_vouched_for_otherwise_is_not_trusted_and_the_line_says_why(
    key: Path, signature: bytes, tmp_path: Path, options: str, why: str
) -> None:
    signers = signers_file(tmp_path / "signers", key, options=options)
    signer = check_signature(CONTENT, signature, signers)
    assert (signer.fingerprint, signer.identity, signer.trusted) == (fingerprint(key), None, False)
    assert signer.refused is not None
    assert signer.refused.startswith(f"a key that {signers}:1 lists for us@site.example, ")
    assert why in signer.refused


def test_a_time_of_a_signers_line_is_that_of_this_zone_unless_it_says_utc(
    key: Path, signature: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "XXX-05:00")
    time.tzset()
    try:
        signers = signers_file(tmp_path / "signers", key, options='valid-before="20200101"')
        assert "expired on 2019-12-31 19:00 UTC" in str(check_signature(CONTENT, signature, signers).refused)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("options", ['valid-after="20200101"', 'valid-before="21000101",namespaces="git,hpcai500"'])
def test_a_key_that_is_valid_now_is_trusted(key: Path, signature: bytes, tmp_path: Path, options: str) -> None:
    signer = check_signature(CONTENT, signature, signers_file(tmp_path / "signers", key, options=options))
    assert (signer.identity, signer.trusted, signer.refused) == ("us@site.example", True, None)


def test_a_key_that_nobody_vouches_for_is_not_trusted(signature: bytes, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    signer = check_signature(CONTENT, signature, signers_file(tmp_path / "signers", other))
    assert (signer.trusted, signer.refused) == (False, None)


@pytest.mark.parametrize("content", [b"", b"\n# nobody yet\n", b"\0\xff" * 100, b"us ssh-ed25519 AAAA\n", b"us\n"])
def test_a_file_without_a_signer_is_an_error_of_use(signature: bytes, tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UsageError, match="--signers"):
        check_signature(CONTENT, signature, tmp_path / "signers")
    (tmp_path / "signers").write_bytes(content)
    with pytest.raises(UsageError, match=r'signers:1: expected a line `NAME namespaces="hpcai500" KEY`') as caught:
        check_signature(CONTENT, signature, tmp_path / "signers")
    assert "\n" not in str(caught.value)


def test_a_key_in_place_of_signers_is_told_with_the_line_to_type(key: Path, signature: bytes, tmp_path: Path) -> None:
    for named in (key.with_suffix(".pub"), key):
        with pytest.raises(UsageError) as caught:
            check_signature(CONTENT, signature, named)
        typed = str(caught.value).partition("for a .pub file: ")[2].replace("NAME", "us")
        subprocess.run(["sh", "-c", typed], check=True, cwd=tmp_path)
        assert check_signature(CONTENT, signature, tmp_path / "signers").identity == "us"


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
@pytest.mark.parametrize("before", ["us ", "us,them cert-authority ", '  "us them" namespaces="git,hpcai500"\t'])
def test_every_form_of_a_signers_line_is_known(tmp_path: Path, kind: str, before: str) -> None:
    public = make_key(tmp_path / "key", kind=kind).with_suffix(".pub").read_text()
    (tmp_path / "signers").write_text(f"# ours\n\nnonsense\n{before}{public}")
    require_signers(tmp_path / "signers")


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (None, 0o600, "ssh-keygen -t ed25519"),
        ("no key\n", 0o600, "cannot sign"),
        ("a key", 0o644, "chmod 600"),
    ],
)
def test_what_is_no_key_of_ones_own_is_a_usage_error(manifest: Path, content: str | None, mode: int, said: str) -> None:
    key = manifest.with_name("key")
    if content == "a key":
        make_key(key)
    elif content:
        key.write_text(content)
    if content:
        key.chmod(mode)
    with pytest.raises(UsageError, match=said) as caught:
        sign(manifest, key)
    assert "\n" not in str(caught.value)


def test_a_passphrase_nobody_can_type_is_told(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = make_key(tmp_path / "key", "secret")
    asked = tmp_path / "asked"
    asker = tmp_path / "askpass"
    asker.write_text(f"#!/bin/sh\ntouch {asked}\nsleep 300\n")
    asker.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(asker))
    monkeypatch.setenv("DISPLAY", ":0")
    with pytest.raises(UsageError, match="ssh-add KEY"):
        sign(manifest, key)
    assert not asked.exists()


def test_a_terminal_without_anybody_is_not_asked(manifest: Path, tmp_path: Path) -> None:
    # A batch job under `script` or a multiplexer: there is a terminal, and standard input is none.
    key = make_key(tmp_path / "key", "secret")
    code = (
        "import sys; from pathlib import Path; from hpcai500.results.submission.signature import sign; "
        "sign(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    here, there = pty.openpty()
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code, str(manifest), str(key)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, pass_fds=(there,),
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(there, termios.TIOCSCTTY, 0),
        )  # fmt: skip
    finally:
        os.close(here)
        os.close(there)
    assert "ssh-add KEY" in ended.stderr


def test_the_key_of_an_agent_can_sign(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = make_key(tmp_path / "key")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        while not (tmp_path / "agent").exists():
            assert agent.poll() is None, "the agent did not begin"
            time.sleep(0.01)
        subprocess.run(["ssh-add", "-q", str(key)], check=True)
        key.rename(tmp_path / "elsewhere")
        made = sign(manifest, tmp_path / "key.pub")
        assert check_signature(CONTENT, made).fingerprint == fingerprint(tmp_path / "key.pub")
    finally:
        agent.terminate()
        agent.wait()


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
    """Another ssh-keygen."""
    (folder / "ssh-keygen").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "ssh-keygen").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        (None, EnvironmentLacksError, "openssh-client"),
        # What OpenSSH 8.0 of Red Hat 8 says.
        ("echo 'unknown option -- Y' >&2; exit 1", EnvironmentLacksError, r"8\.2 or later"),
        ("exec sleep 300", HpcAi500Error, "did not answer"),
    ],
    ids=["none", "too old", "hangs"],
)
def test_an_ssh_keygen_that_does_not_help_is_told_in_one_line(
    signature: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str | None,
    error: type[Exception],
    said: str,
) -> None:
    if body:
        stand_in(monkeypatch, tmp_path, body)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "_TIMEOUT_SECONDS", 0.2 if said == "did not answer" else 60)
    with pytest.raises(error, match=said) as caught:
        check_signature(CONTENT, signature)
    assert "\n" not in str(caught.value)
    assert error is not EnvironmentLacksError or caught.value.exit_code == ExitCode.ENVIRONMENT
