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

from hpcai500.errors import EnvironmentLacksError, ExitCode, UsageError, WrongAnswerError
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
def test_any_kind_of_key_will_do(tmp_path: Path, kind: str) -> None:
    (tmp_path / "x").write_bytes(CONTENT)
    key = make_key(tmp_path / "key", kind=kind)
    assert check_signature(CONTENT, sign(tmp_path / "x", key)).fingerprint == fingerprint(key)


def test_other_content_was_not_signed(signature: bytes) -> None:
    with pytest.raises(WrongAnswerError, match=r"not one of manifest\.json") as caught:
        check_signature(CONTENT + b" ", signature)
    assert "\n" not in str(caught.value)


def test_a_signature_for_another_purpose_is_none(key: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(CONTENT)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", key, tmp_path / "x"], check=True)
    with pytest.raises(WrongAnswerError):
        check_signature(CONTENT, (tmp_path / "x.sig").read_bytes())


@pytest.mark.parametrize("junk", [b"", b"junk", b"-----BEGIN SSH SIGNATURE-----\nAAAA\n", b"\0" * 1000, b"x" * 100_000])
def test_junk_is_no_signature(junk: bytes) -> None:
    with pytest.raises(WrongAnswerError):
        check_signature(CONTENT, junk)


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
        ('namespaces="hpcai500",valid-before="20200101Z"', "that has expired on 2020-01-01 00:00 UTC"),
        ('valid-before="202001022359Z",namespaces="hpc*"', "that has expired on 2020-01-02 23:59 UTC"),
        ('valid-after="21000101120000Z"', "that is not valid before 2100-01-01 12:00 UTC"),
        ('valid-after="20000101",valid-before="20010101"', "that has expired on "),
        ("cert-authority", "as an authority that vouches for keys"),
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


def test_a_missing_file_of_signers_is_an_error_of_use(signature: bytes, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--signers"):
        check_signature(CONTENT, signature, tmp_path / "no")


@pytest.mark.parametrize("content", [b"", b"\n# nobody yet\n", b"\0\xff" * 100, b"us ssh-ed25519 AAAA\n", b"us\n"])
def test_a_file_without_a_signer_is_an_error_of_use(signature: bytes, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "signers").write_bytes(content)
    with pytest.raises(UsageError, match=r'signers:1: no line `NAME namespaces="hpcai500" KEY`') as caught:
        check_signature(CONTENT, signature, tmp_path / "signers")
    assert "\n" not in str(caught.value)


def test_a_public_key_in_place_of_signers_is_told_with_the_line_that_makes_them(
    key: Path, signature: bytes, tmp_path: Path
) -> None:
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


def test_a_missing_key_is_told_with_the_line_that_makes_one(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(CONTENT)
    with pytest.raises(UsageError, match="ssh-keygen -t ed25519"):
        sign(tmp_path / "x", tmp_path / "no")


def test_a_file_that_is_no_key_is_an_error_of_use(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(CONTENT)
    (tmp_path / "key").write_text("no key\n")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(UsageError, match="cannot sign") as caught:
        sign(tmp_path / "x", tmp_path / "key")
    assert "\n" not in str(caught.value)


def test_a_key_that_others_can_read_is_told(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    key.chmod(0o644)
    (tmp_path / "x").write_bytes(CONTENT)
    with pytest.raises(UsageError, match="chmod 600"):
        sign(tmp_path / "x", key)


def test_a_passphrase_that_nobody_can_type_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = make_key(tmp_path / "key", "secret")
    (tmp_path / "x").write_bytes(CONTENT)
    asked = tmp_path / "asked"
    asker = tmp_path / "askpass"
    asker.write_text(f"#!/bin/sh\ntouch {asked}\nsleep 300\n")
    asker.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(asker))
    monkeypatch.setenv("DISPLAY", ":0")
    with pytest.raises(UsageError, match="ssh-add KEY"):
        sign(tmp_path / "x", key)
    assert not asked.exists()


def test_a_terminal_without_anybody_is_not_asked(tmp_path: Path) -> None:
    # A batch job under `script` or a multiplexer: there is a terminal, and standard input is none.
    key = make_key(tmp_path / "key", "secret")
    (tmp_path / "x").write_bytes(CONTENT)
    code = (
        "import sys; from pathlib import Path; from hpcai500.results.submission.signature import sign; "
        "sign(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    here, there = pty.openpty()
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "x"), str(key)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, pass_fds=(there,),
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(there, termios.TIOCSCTTY, 0),
        )  # fmt: skip
    finally:
        os.close(here)
        os.close(there)
    assert "ssh-add KEY" in ended.stderr


def test_the_key_of_an_agent_signs_by_its_public_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = make_key(tmp_path / "key")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        while not (tmp_path / "agent").exists():
            time.sleep(0.01)
        subprocess.run(["ssh-add", "-q", str(key)], check=True)
        key.rename(tmp_path / "elsewhere")
        (tmp_path / "x").write_bytes(CONTENT)
        made = sign(tmp_path / "x", tmp_path / "key.pub")
        assert check_signature(CONTENT, made).fingerprint == fingerprint(tmp_path / "key.pub")
    finally:
        agent.terminate()
        agent.wait()


def test_without_ssh_keygen_the_package_is_named(
    key: Path, signature: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentLacksError, match="openssh-client") as caught:
        check_signature(CONTENT, signature)
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def old_program(folder: Path, body: str) -> str:
    """Stands for another ssh-keygen."""
    program = folder / "ssh-keygen"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_an_ssh_keygen_that_is_too_old_is_told(
    signature: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What OpenSSH 8.0 of Red Hat 8 says.
    monkeypatch.setenv("PATH", old_program(tmp_path, "echo 'unknown option -- Y' >&2; exit 1"))
    with pytest.raises(EnvironmentLacksError, match=r"8\.2 or later"):
        check_signature(CONTENT, signature)


def test_an_ssh_keygen_that_hangs_hangs_nobody(
    signature: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", old_program(tmp_path, "exec sleep 300"))
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.2)
    with pytest.raises(Exception, match="did not answer") as caught:
        check_signature(CONTENT, signature)
    assert "\n" not in str(caught.value)
