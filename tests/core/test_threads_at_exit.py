"""A process that ends while daemon threads are inside the core keeps its exit code, and says nothing of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from builders.data import LAYOUTS_OF_IMAGES, fields, write_images
from jpeg_files import jpeg, photograph

ROOT = Path(__file__).resolve().parents[2]

# Each kind of call on a thread of its own, over and over. The main thread ends the process once all have begun. The end
# of the interpreter takes a while, in which every thread comes to ask for the GIL.
SCRIPT = """
import sys, threading, time
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[1])
from builders.data import SHAPE, stored_year
from hpcai500 import _core

class SlowEnd:
    def __del__(self, sleep=time.sleep):
        sleep(0.25)

slow_end = SlowEnd()
folder = Path(sys.argv[2])
data = (folder / "picture.jpg").read_bytes()
spec = _core.DecodeSpec(size=16)
crop = np.empty(spec.shape, np.float32)
values = np.ones(1 << 16, np.float32)
packed = np.empty(values.size, np.float16)
boxes, scores = np.random.default_rng(1).random((300, 4), np.float32), np.ones(300, np.float32)
batch = np.ones((2, 3, 32, 32), np.float32)
images, channels, rows, columns = SHAPE
year = np.empty((images, channels, rows, columns), np.float32)
reader = _core.ClimateReader(
    [stored_year(folder / "year.h5")],
    channels=range(channels), mean=None, std=None, dtype="float32", left=0, width=columns, threads=2,
)
# For more than the tenth of a second after which a reader looks for signals.
many = np.zeros(5000, np.int64)
many_images = np.empty((many.size, channels, rows, columns), np.float32)
slots = [np.empty((2, *spec.shape), np.float32) for _ in range(2)]
loader = _core.JpegLoader(str(folder), ["picture.jpg"], spec, slots=slots, threads=1)

def load():
    loader.submit(np.zeros(2, np.int64), seed=1, epoch=0)
    loader.release(loader.next().slot)

calls = {
    "crop": lambda: _core.decode_crop(data, spec, crop, seed=1, epoch=0, sample=0),
    "check": lambda: _core.check_jpeg(data),
    "probe": lambda: _core.probe_jpeg(data),
    "box": lambda: _core.crop_box(spec, 640, 480, seed=1, epoch=0, sample=0),
    "points": lambda: _core.seek_points(data),
    "key": lambda: _core.seek_key(data),
    "climate": lambda: reader.read_window(0, 0, images, year),
    "climate, for long": lambda: reader.read(many, many, many_images),
    "load": load,
    "pack": lambda: _core.pack([values], packed, wire="float16", scale=1.0, threads=2),
    "unpack": lambda: _core.unpack(packed, [values], wire="float16", scale=1.0, threads=2),
    "nms": lambda: _core.nms(boxes, scores, None, iou_threshold=0.5, threads=2),
    "convert": lambda: _core.convert_images(batch, batch.copy(), threads=2),
}
begun = {name: threading.Event() for name in calls}

def work(name):
    calls[name]()
    begun[name].set()
    while True:
        calls[name]()

for name in calls:
    threading.Thread(target=work, args=(name,), daemon=True).start()
for name, event in begun.items():
    assert event.wait(60), name
sys.exit(3)
"""


def test_a_process_with_threads_inside_the_core_keeps_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "picture.jpg").write_bytes(jpeg(photograph(300, 200)))
    write_images(tmp_path / "year.h5", fields(), **LAYOUTS_OF_IMAGES["shipped"])
    for _ in range(8):
        command = [sys.executable, "-c", SCRIPT, str(ROOT / "tests"), str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert (ended.returncode, ended.stderr) == (3, "")


def test_no_binding_releases_the_gil_in_another_way() -> None:
    bindings = ROOT / "csrc" / "bindings"
    assert not [path.name for path in bindings.iterdir() if "py::gil_scoped" in path.read_text()]
