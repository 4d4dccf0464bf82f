"""Stop commands by signals at random moments, and report what they did: `benchmarks/random_stops.py --stops 100`.

Each stop starts a command in a folder of its own, waits for a random time, sends a signal to the command's process, and
measures how long any process of the command lives on. A stop is bad where

- a process lives longer than --limit seconds,
- stderr has a traceback,
- SIGINT, SIGTERM or SIGHUP end the command in another way than with exit code 1 and a line that names the signal,
- SIGINT, SIGTERM or SIGHUP leave temporary files.

--load N starts N busy processes beside it. Exit code 1 where a stop was bad.

--kills N instead kills one run N times at random moments, waits up to three seconds each time, and resumes the run. Its
goodput must fit: the parts add up to the time from the first process to the last event within 1 %, downtime is what was
waited, and no kill leaves more than one pause unknown.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hpcai500.methodology.goodput import goodput
from hpcai500.record import read_record

COMMANDS = {
    "micro": "micro --seconds 0.1",
    "micro ranks": "micro gemm allreduce --seconds 0.1 --procs 2 --set communication.backend=torch",
    "doctor": "doctor",
    "doctor ic": "doctor ic --procs 2",
    "profile": "profile ic",
    "flops": "flops ewa",
    "self-test": "self-test",
    "scale": "scale ic --procs 1,2",
    "ic": "ic --procs 2",
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGKILL)
_MARK = "HPCAI500_RANDOM_STOP"
_NAMES = {signal.SIGINT: ("Ctrl-C", "SIGINT"), signal.SIGTERM: ("SIGTERM",), signal.SIGHUP: ("SIGHUP",)}
# Python's own start, in which no code of ours can handle a signal.
_START_SECONDS = 0.1


@dataclass(frozen=True)
class Stop:
    """What one stop came to.

    Attributes:
        name: of the command.
        number: the signal.
        after_seconds: when it was sent.
        outlived_seconds: how long the last process lived after it; None where the command had ended before.
        faults: what was wrong.
    """

    name: str
    number: signal.Signals
    after_seconds: float
    outlived_seconds: float | None
    faults: tuple[str, ...]

    def line(self) -> str:
        lived = "had ended" if self.outlived_seconds is None else f"lived {self.outlived_seconds:5.2f} s"
        return (
            f"{self.name:12} {self.number.name:8} after {self.after_seconds:5.2f} s: {lived}"
            f"{''.join(f'  BAD: {fault}' for fault in self.faults)}"
        )


def processes(mark: str) -> list[int]:
    """Those that have `mark` in their environment and run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                mark.encode() in (folder / "environ").read_bytes()
                and "\nState:\tZ" not in (folder / "status").read_text()
            ):
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended meanwhile, or is somebody else's
    return found


def stop_once(name: str, number: signal.Signals, after_seconds: float, limit_seconds: float) -> Stop:
    """Start the command `name`, stop it, and look at what is left."""
    with tempfile.TemporaryDirectory() as folder:
        work, scratch, said = Path(folder, "work"), Path(folder, "tmp"), Path(folder, "said")
        work.mkdir()
        scratch.mkdir()
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        environment = {**os.environ, "TMPDIR": str(scratch), _MARK: mark}
        command = [sys.executable, "-c", "import sys; from hpcai500.cli import main; sys.exit(main())"]
        with said.open("w") as stream:
            process = subprocess.Popen(
                [*command, *COMMANDS[name].split()],
                cwd=work, env=environment, stdout=stream, stderr=stream, start_new_session=True,
            )  # fmt: skip
        try:
            process.wait(after_seconds)
            return Stop(name, number, after_seconds, None, ())
        except subprocess.TimeoutExpired:
            pass
        process.send_signal(number)
        sent = time.monotonic()
        # Much longer than allowed, to learn how long it is.
        while (process.poll() is None or processes(mark)) and time.monotonic() - sent < 12 * limit_seconds:
            time.sleep(0.02)
        outlived = time.monotonic() - sent
        faults = []
        if alive := processes(mark):
            faults.append(f"{len(alive)} processes live on")
            for one in alive:
                os.kill(one, signal.SIGKILL)
        elif outlived > limit_seconds:
            faults.append(f"longer than {limit_seconds:g} s")
        code = process.wait()
        text = said.read_text(errors="replace")
        if "Traceback" in text:
            faults.append("a traceback")
        if number in _NAMES and code != 0:
            if code != 1:
                faults.append(f"exit code {code}")
            if not any(f"stopped by {one}" in text or f"{one}: stopping" in text for one in _NAMES[number]):
                faults.append("no line that names the signal")
        left = list(scratch.glob("hpcai500-*"))
        if number in _NAMES and left:
            faults.append(f"left {', '.join(path.name for path in left)}")
        if faults:
            sys.stderr.write(text)
        return Stop(name, number, after_seconds, outlived, tuple(faults))


# Between two signs of life of a run.
_PAUSE_SECONDS = 2.0


def kill_often(kills: int, chance: random.Random, longest: float) -> int:
    """Kill one run `kills` times, and compare its goodput with what was done to it; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        record, data = Path(folder, "record"), Path(folder, "data")
        cli = [sys.executable, "-c", "import sys; from hpcai500.cli import main; sys.exit(main())"]
        make = ["data", "make", "ic", str(data), "--classes", "3", "--train-per-class", "11", "--val-per-class", "4"]
        subprocess.run([*cli, *make], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        train = [sys.executable, "-m", "hpcai500.train"]
        resume = [*train, "--resume", "--out", str(record), "--data", str(data)]
        command = [*train, "--recipe", "ic/smoke", "--data", str(data), "--out", str(record)]
        command += [token for setting in _SETTINGS for token in ("--set", setting)]
        waited = 0.0
        for done in range(kills):
            process = _began(command, record)
            time.sleep(chance.uniform(0, longest))
            if process.poll() is not None:
                print(f"bad: the run ended after {done} kills")
                return 1
            process.kill()
            process.wait()
            dead = time.time()
            print(f"kill {done + 1:2} after {_count(record, 'checkpoint')} checkpoints", flush=True)
            time.sleep(chance.uniform(0, 3))
            waited, command = waited + time.time() - dead, resume
        process, saved = _began(command, record), _count(record, "checkpoint")
        while process.poll() is None and _count(record, "checkpoint") < saved + 3:
            time.sleep(0.1)
        process.terminate()
        process.wait()
        return _compare(record, kills, waited)


_SETTINGS = (
    "problem.dataset=synthetic-tiny", "problem.epochs=100000", "problem.target_quality=0.01",
    "hyperparameters.batch_size=8", "hyperparameters.warmup_epochs=1", "workload.width=8", "workload.image_size=32",
    "workload.evaluation_resize=36", "os.threads=1", "os.input_threads=2",
)  # fmt: skip


def _began(command: list[str], record: Path) -> subprocess.Popen[bytes]:
    """The process, once it has written its first event."""
    starts = _count(record, "init_start")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and _count(record, "init_start") == starts:
        time.sleep(0.01)
    return process


def _compare(record: Path, kills: int, waited: float) -> int:
    events = read_record(record).events
    derived = goodput(events)
    assert derived is not None
    found = derived.model_dump()
    first = next(event for event in events if event["key"] == "init_start")
    whole = events[-1]["time_ms"] / 1000 - first["time_ms"] / 1000 + first["value"]["launch"]["process_seconds"]
    parts, most = found["seconds"], kills * (_PAUSE_SECONDS + 0.03)
    faults = {
        f"the parts add up to {sum(parts.values()):.2f} s": abs(sum(parts.values()) / whole - 1) > 0.01,
        f"{found['interruptions']} interruptions": found["interruptions"] != kills,
        "more than a pause is unknown": parts["unknown"] > most,
        "less downtime than was waited": parts["downtime"] + parts["unknown"] < waited - 0.03 * kills,
        "a part is negative": min(parts.values()) < 0,
    }
    print(f"{kills} kills in {whole:.2f} s, {waited:.2f} s of waiting; the parts add up to {sum(parts.values()):.2f} s")
    for part, seconds in parts.items():
        print(f"  {part:14} {seconds:8.2f} s  {seconds / whole:6.1%}")
    print(f"  from an interruption to the next step: {found['recovery_seconds']:.2f} s")
    bad = [fault for fault, is_so in faults.items() if is_so]
    print(f"bad: {len(bad)} {bad}")
    return int(bool(bad))


def _count(record: Path, key: str) -> int:
    log = record / "events.jsonl"
    return log.read_bytes().count(f'"key":"{key}"'.encode()) if log.exists() else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--load", type=int, default=0, help="busy processes beside it")
    parser.add_argument("--longest", type=float, default=25.0, help="seconds after which a signal comes at the latest")
    parser.add_argument("--kills", type=int, default=0, help="kill one run so often, and check its goodput")
    parser.add_argument("--limit", type=float, default=5.0, help="seconds that a process may live after the signal")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="with commas between")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.load} busy processes, {len(os.sched_getaffinity(0))} cores", flush=True)
    # A shell starts what runs in its background with some of them ignored, and programs inherit that.
    for number in set(SIGNALS) - {signal.SIGKILL}:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    chance = random.Random(options.seed)
    if options.kills:
        return kill_often(options.kills, chance, longest=6.0)
    names = options.commands.split(",")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)]
    stops = []
    try:
        for turn in range(options.stops):
            # Half of them early, where programs load.
            longest = options.longest if chance.random() < 0.5 else options.longest / 5
            after = chance.uniform(_START_SECONDS * (1 + options.load), longest)
            stops.append(stop_once(names[turn % len(names)], chance.choice(SIGNALS), after, options.limit))
            print(stops[-1].line(), flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    lived = [stop.outlived_seconds for stop in stops if stop.outlived_seconds is not None]
    faults = Counter(fault.partition(" hpcai500-")[0] for stop in stops for fault in stop.faults)
    print(f"{len(stops)} stops, {len(lived)} while the command ran; the longest lived {max(lived, default=0):.2f} s")
    for name in names:
        mine = [stop.outlived_seconds for stop in stops if stop.name == name and stop.outlived_seconds is not None]
        print(f"  {name:12} {len(mine):3} stops, the longest lived {max(mine, default=0):.2f} s")
    print(f"bad: {sum(bool(stop.faults) for stop in stops)} {dict(faults)}")
    return int(any(stop.faults for stop in stops))


if __name__ == "__main__":
    sys.exit(main())
