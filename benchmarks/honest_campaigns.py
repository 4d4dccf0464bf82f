"""Run honest campaigns through trouble, submit them, and count what verification says against them:
`benchmarks/honest_campaigns.py --campaigns 24 --load 2 [--json FILE]`.

Each is a real campaign of tiny models, of Image Classification or Extreme Weather Analytics, on one rank or two. While
it runs, it meets up to four troubles at random moments: a signal that stops it, a machine that loses power (SIGKILL of
all processes), a lost node (SIGKILL of one rank), a node that stands still for some seconds (SIGSTOP). --load N starts
N busy processes beside it. After each, `hpcai500 campaign run` goes on. Its heads are kept with the time of their
receipt, as a committee would. Then it is packed, signed, and verified with its identity, its heads and a list of
signers.

Exit code 1 where an honest campaign was refused.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.runs import TINY, TINY_WEATHER

COMMAND = [str(Path(sys.executable).with_name("hpcai500"))]
SETTINGS = {"ic": (*TINY, "problem.epochs=150"), "ewa": (*TINY_WEATHER, "problem.epochs=40")}
DATA = {
    "ic": "data make ic DIR --classes 3 --train-per-class 11 --val-per-class 4",
    "ewa": "data make ewa DIR --years 1979-1980 --images-per-year 10 --height 64 --width 96",
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
TRIALS, MOST_TROUBLES, LATEST_SECONDS, STILL_SECONDS = 3, 4, 20.0, 4.0
# A campaign that has not ended after so many commands never will. Its models are too small to learn much.
MOST_COMMANDS = 12
ENDED = (0, 2)
_MARK = "HPCAI500_HONEST_CAMPAIGN"
# Does something to a command whose processes have this mark; returns what, in words.
Trouble = Callable[["subprocess.Popen[str]", str, random.Random], str]


@dataclass
class Tried:
    """What one campaign met, and what was said of it."""

    number: int
    benchmark: str
    ranks: int
    troubles: list[str] = field(default_factory=list)
    verdict: str = ""
    fails: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def line(self) -> str:
        said = "".join(f"\n     {one}" for one in (*self.fails, *self.warnings))
        met = ", ".join(self.troubles) or "no trouble"
        return f"{self.number:3} {self.benchmark} on {self.ranks}: {met}: {self.verdict}{said}"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Call a command."""
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)


def call(*arguments: str | Path) -> str:
    """What a command prints; it must succeed."""
    ended = run(*arguments)
    if ended.returncode:
        said = f"{ended.stdout}{ended.stderr}"
        raise SystemExit(f"hpcai500 {' '.join(map(str, arguments))} ended with {ended.returncode}:\n{said}")
    return ended.stdout


def try_campaign(number: int, chance: random.Random, sets: dict[str, Path], folder: Path, key: Path) -> Tried:
    """One campaign from its plan to its verdict."""
    tried = Tried(number, chance.choice(sorted(sets)), chance.choice((1, 2)))
    campaign, heads = folder / "campaign", folder / "heads.txt"
    settings = [*SETTINGS[tried.benchmark], f"hyperparameters.seed={1 + 100 * number}"]
    if tried.ranks > 1:
        settings.append("communication.backend=torch")
    procs = ("--procs", str(tried.ranks))
    plan = call(
        "campaign", "init", campaign, "--recipe", f"{tried.benchmark}/smoke", "--data", sets[tried.benchmark], *procs,
        "--trials", str(TRIALS), *(token for one in settings for token in ("--set", one)), "--json",
    )  # fmt: skip
    planned = [chance.choice(TROUBLES) for _ in range(chance.randint(0, MOST_TROUBLES))]
    for _ in range(MOST_COMMANDS):
        command = ["campaign", "run", str(campaign), *procs, "--oversubscribe", "--power", "none"]
        code, met = run_once(command, heads, chance, planned.pop() if planned else None)
        tried.troubles += [met] if met else []
        # A machine that loses power prints nothing; a committee that asks for all heads gets them when it is back.
        receive(call("campaign", "heads", campaign), heads)
        if code in ENDED:
            break
    else:
        raise SystemExit(f"campaign {number} did not end: {tried.line()}")
    submission, signers = folder / "submission.zip", folder / "signers"
    packed = ("-o", submission, "--system", "System", "--organisation", "Site", "--key", key)
    ended = run("submit", campaign, *packed)
    if ended.returncode:
        tried.verdict, tried.fails = "not packed", [f"{ended.stdout}{ended.stderr}"]
        shutil.move(campaign, Path(tempfile.gettempdir(), f"refused-{os.getpid()}-{number}"))
        return tried
    signers.write_text(f'site namespaces="hpcai500" {key.with_suffix(".pub").read_text()}')
    asked = ("--signers", signers, "--registered", json.loads(plan)["identity"], "--heads", heads)
    document: dict[str, Any] = json.loads(run("verify", submission, *asked, "--json").stdout)
    tried.verdict = document["verdict"]
    for one in document["findings"]:
        if one["severity"] in ("fail", "warning"):
            (tried.fails if one["severity"] == "fail" else tried.warnings).append(f"{one['name']}: {one['evidence']}")
    return tried


def run_once(command: list[str], heads: Path, chance: random.Random, trouble: Trouble | None) -> tuple[int, str]:
    """Run `command`, which meets `trouble`; returns its exit code and what it met."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [*COMMAND, *command], env={**os.environ, _MARK: mark}, start_new_session=True, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr
    reader = Thread(target=receive_all, args=(process.stderr, heads))
    reader.start()
    met = ""
    if trouble:
        after = chance.uniform(2.0, LATEST_SECONDS)
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            met = f"{trouble(process, mark, chance)} after {after:.1f} s"
    code = process.wait()
    reader.join()
    return code, met


def receive(text: str, heads: Path) -> None:
    """What a committee does with a line."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with heads.open("a", encoding="utf-8") as file:
        file.writelines(f"{line} {now}\n" for line in text.splitlines() if line.startswith("HPCAI500 HEAD"))


def receive_all(stream: IO[str], heads: Path) -> None:
    """Every line as it comes."""
    for line in stream:
        receive(line, heads)


def processes(mark: str) -> Iterator[int]:
    """Those of a command that are no zombies."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark.encode() in (folder / "environ").read_bytes()
            if marked and "\nState:\tZ" not in (folder / "status").read_text():
                yield int(folder.name)
        except OSError:
            continue  # it has ended meanwhile, or is somebody else's


def ranks_of(process: subprocess.Popen[str], mark: str) -> list[int]:
    """The processes that train; the command itself where it has none beside it."""
    return [one for one in processes(mark) if b"train" in Path(f"/proc/{one}/cmdline").read_bytes()] or [process.pid]


def stopped(process: subprocess.Popen[str], mark: str, chance: random.Random) -> str:
    number = chance.choice(SIGNALS)
    process.send_signal(number)
    return number.name


def without_power(process: subprocess.Popen[str], mark: str, chance: random.Random) -> str:
    while alive := list(processes(mark)):
        for one in alive:
            kill(one, signal.SIGKILL)
        time.sleep(0.02)
    return "power lost"


def node_lost(process: subprocess.Popen[str], mark: str, chance: random.Random) -> str:
    kill(chance.choice(ranks_of(process, mark)), signal.SIGKILL)
    return "node lost"


def node_still(process: subprocess.Popen[str], mark: str, chance: random.Random) -> str:
    one = chance.choice(ranks_of(process, mark))
    kill(one, signal.SIGSTOP)
    time.sleep(STILL_SECONDS)
    kill(one, signal.SIGCONT)
    return f"node still for {STILL_SECONDS:g} s"


def kill(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return  # it has ended by itself


TROUBLES = (stopped, without_power, node_lost, node_still)


@contextmanager
def busy(number: int) -> Iterator[None]:
    """So many processes that compute beside it."""
    beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in beside:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=24, help="how many (default 24)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--load", type=int, default=0, help="busy processes beside it")
    parser.add_argument("--json", type=Path, help="write what was found here as well")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    print(f"seed {options.seed}, {options.load} busy processes, {len(os.sched_getaffinity(0))} cores", flush=True)
    found: list[Tried] = []
    with tempfile.TemporaryDirectory() as scratch, busy(options.load):
        key, sets = Path(scratch, "key"), {name: Path(scratch, name) for name in DATA}
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        for name, text in DATA.items():
            call(*text.replace("DIR", str(sets[name])).split())
        for number in range(1, options.campaigns + 1):
            folder = Path(scratch, str(number))
            folder.mkdir()
            found.append(try_campaign(number, chance, sets, folder, key))
            print(found[-1].line(), flush=True)
    refused = [one for one in found if one.fails or one.verdict != "verified"]
    warned = Counter(said.partition(":")[0] for one in found for said in one.warnings)
    troubles = Counter(met.partition(" after ")[0] for one in found for met in one.troubles)
    print(f"{len(found)} campaigns, {sum(troubles.values())} troubles {dict(troubles)}: {len(refused)} refused")
    print(f"warnings: {dict(warned)}")
    if options.json:
        setting = {"seed": options.seed, "busy_processes": options.load, "cores": len(os.sched_getaffinity(0))}
        counts = {"campaigns": len(found), "refused": len(refused), "troubles": troubles, "warnings": warned}
        document = {**setting, **counts, "each": [asdict(one) for one in found]}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
