"""Stop commands by signals at random moments, and report what they did: `benchmarks/random_stops.py --stops 100`.

Each stop starts a command in a folder of its own, waits for a random time, sends a signal to the command's process, and
measures how long any process of the command lives on. A stop is bad where

- a process lives longer than --limit seconds,
- stderr has a traceback,
- SIGINT, SIGTERM or SIGHUP end the command in another way than with exit code 1 and a line that names the signal,
- SIGINT, SIGTERM or SIGHUP leave temporary files.

--load N starts N busy processes beside it. Exit code 1 where a stop was bad.
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--load", type=int, default=0, help="busy processes beside it")
    parser.add_argument("--longest", type=float, default=25.0, help="seconds after which a signal comes at the latest")
    parser.add_argument("--limit", type=float, default=5.0, help="seconds that a process may live after the signal")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="with commas between")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.load} busy processes, {len(os.sched_getaffinity(0))} cores", flush=True)
    # A shell starts what runs in its background with some of them ignored, and programs inherit that.
    for number in set(SIGNALS) - {signal.SIGKILL}:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    chance = random.Random(options.seed)
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
