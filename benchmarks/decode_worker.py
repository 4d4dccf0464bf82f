"""One contestant of decode_crop.py or dali_loader.py in its own process: reads a number of batches a line, answers
images per second of wall time and per second of processor time."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dali_rivals import DALI_CONTESTANTS
from decode_images import SETS, paths_of
from decode_rivals import BATCH, CONTESTANTS, measure


def main() -> None:
    """Arguments: the contestant, the image set, the number of threads."""
    name, set_name, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    paths: list[Path] = paths_of(next(image_set for image_set in SETS if image_set.name == set_name))
    run = (CONTESTANTS | DALI_CONTESTANTS)[name](paths, threads)
    run(6)
    time.sleep(0.2)
    print("ready", flush=True)
    for line in sys.stdin:
        batches = int(line)
        print(*(batches * BATCH / seconds for seconds in measure(run, batches)), flush=True)


if __name__ == "__main__":
    main()
