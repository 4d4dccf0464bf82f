"""A command with copies, for test_rendezvous.py: as `hpcai500 ic` under a launcher, with jobs that tell their place.

rendezvous_of_copies.py FOLDER JOBS CODE: rank 0 has JOBS jobs run, then ends all with CODE
"""

from __future__ import annotations

import os
import sys

from hpcai500.hosts import find_placement
from hpcai500.launch import rendezvous
from hpcai500.launch.rendezvous import RendezvousServer, follow

JOB = """
import json, os, socket, sys
from hpcai500.hosts import find_placement
place = find_placement(os.environ)
folder, number = sys.argv[2:]
host, port = place.rendezvous.split(":")
if place.rank == 0:
    with socket.socket(fileno=place.listen_fd) as listener:
        met = sorted(int(listener.accept()[0].recv(9)) for _ in range(place.size - 1))
else:
    met = []
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(str(place.rank).encode())
about = {"rank": place.rank, "size": place.size, "launcher": place.launcher, "rendezvous": place.rendezvous, "met": met,
         "cores": sorted(os.sched_getaffinity(0))}
print("a job's stdout is no result")
open(f"{folder}/{number}-{place.rank}", "w").write(json.dumps(about))
sys.exit(int(place.rank == place.size - 1 and number == "3"))
"""


def main(folder: str, jobs: str, code: str) -> int:
    # The jobs are stand-ins; copies, sockets, launchers and processes are real.
    rendezvous.module_command = lambda *command: [sys.executable, "-c", JOB, *map(str, command)]  # type: ignore[assignment]
    placement = find_placement(os.environ)
    if placement.rank > 0:
        return follow(placement)
    server = RendezvousServer(placement)
    server.open()
    codes = [server.run("job", [folder, str(number)]) for number in range(1, int(jobs) + 1)]
    sys.stdout.write(f"result {codes}\n")
    sys.stdout.flush()
    server.end(int(code))
    return int(code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
