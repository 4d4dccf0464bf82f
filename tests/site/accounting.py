"""Slurm's accounting on a site: a real slurmdbd over a real MariaDB on the switch. Needs slurmdbd, mariadb-server."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from hosts import ROUTER, Site

TOOLS = ("slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb-install-db")
# What slurm.conf says of it.
CONF = f"""
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={ROUTER}
"""
_PORT = 13306
_DBD = """
DbdHost={router}
SlurmUser=root
AuthType=auth/munge
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={port}
StorageUser=root
StorageLoc=slurm_acct_db
"""


def missing_tools() -> list[str]:
    """What is not installed."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def start_accounting(site: Site, folder: Path, environment: dict[str, str]) -> None:
    """Start a database and slurmdbd, and wait until they answer; `folder` holds slurm.conf. munged must be running.

    Raises:
        AssertionError: they do not answer within 30 s.
    """
    database = folder / "database"
    database.mkdir()
    made = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={database}", "--skip-test-db"]
    site.run(ROUTER, [*made, "--auth-root-authentication-method=normal"], timeout=120)
    server = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={database}", "--innodb-buffer-pool-size=64M"]
    server += ["--bind-address=127.0.0.1", f"--port={_PORT}", f"--socket={database}/socket"]
    server += [f"--pid-file={database}/pid", "--innodb-lock-wait-timeout=900", "--skip-grant-tables"]
    _start(site, folder, server)
    _wait(site, ["mariadb-admin", "--no-defaults", f"--socket={database}/socket", "ping"], folder)
    path = folder / "slurmdbd.conf"
    path.write_text(_DBD.format(router=ROUTER, folder=folder, port=_PORT))
    # It may hold a password, so slurmdbd wants nobody else to read it.
    path.chmod(0o600)
    _start(site, folder, ["slurmdbd", "-D"], environment)
    _wait(site, ["sacctmgr", "--immediate", "--quiet", "show", "cluster"], folder, environment)


def _start(site: Site, folder: Path, command: list[str], environment: dict[str, str] | None = None) -> None:
    with (folder / f"{command[0]}.out").open("wb") as output:
        site.start(ROUTER, command, environment, stdout=output, stderr=output)


def _wait(site: Site, command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    limit = time.monotonic() + 30
    while True:
        output, code = site.attempt(ROUTER, command, environment=environment)
        if code == 0:
            return
        logs = "\n".join(f"{file.name}: {file.read_text(errors='replace')[-1000:]}" for file in folder.glob("*.out"))
        assert time.monotonic() < limit, f"{output}\n{logs}"
        time.sleep(0.1)
