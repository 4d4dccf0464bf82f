"""Memory is taken for pixels that a file can have, not for those that its header claims (docs/fuzzing.md)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from huffman_code import HuffmanCode
from jpeg_blocks import Block, Codes, Frame, write_blocks
from pictures import jpeg, photograph

from hpcai500 import _core

# All rows of the image are in the sixteen rows of the output: our decoder would hold three planes of 32 MB and a
# quarter more, and libjpeg-turbo's path holds 50 MB of rows.
WIDTH, HEIGHT, ROOM_MB = 16_000, 2_000, 80
SCRIPT = f"""
import resource, sys
from pathlib import Path
import numpy as np
from hpcai500 import _core

data = Path(sys.argv[1]).read_bytes()
spec = _core.DecodeSpec(size=16, dtype="uint8", decoder=sys.argv[2])
out = np.zeros(spec.shape, np.uint8)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + ({ROOM_MB} << 20), resource.RLIM_INFINITY))
try:
    _core.decode_box(data, spec, out, x=0, y=0, width={WIDTH}, height={HEIGHT}, flip=False)
except (_core.JpegError, MemoryError) as error:
    print(getattr(error, "kind", "out of memory"))
"""


def claiming(width: int, height: int) -> bytes:
    """A file of some hundred bytes whose header says that it has these pixels."""
    data = bytearray(jpeg(photograph(48, 48), subsampling="4:4:4"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    # Without the end of the image, where libjpeg would fill up what is missing.
    return bytes(data[:-2])


@pytest.mark.parametrize("decoder", ["own", "libjpeg-turbo"])
def test_a_few_bytes_get_no_memory_for_the_millions_of_pixels_that_they_claim(decoder: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(claiming(WIDTH, HEIGHT))
    command = [sys.executable, "-c", SCRIPT, str(file), decoder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "truncated\n"), done.stderr


def test_a_claim_of_the_largest_size_is_refused_by_the_header_alone() -> None:
    with pytest.raises(_core.JpegError, match="the header claims 65500 x 65500 pixels; the limit is 268435456"):
        _core.probe_jpeg(claiming(65_500, 65_500))


def test_blocks_of_the_fewest_bits_get_all_of_their_memory(tmp_path: Path) -> None:
    """Two bits a block: the bound leaves none of them to libjpeg-turbo."""
    one = (1, *[0] * 15)
    codes = [Codes(HuffmanCode(one, (0,)), HuffmanCode(one, (0,)))]
    frame = Frame(600, 600, [(1, 1)], codes)
    data = write_blocks(frame, [[Block(0, [(0, 0), (0, 0)])]] * (75 * 75))
    path = str(tmp_path / "index")
    writer = _core.SeekIndexWriter(path)
    writer.add(*_core.seek_key(data), _core.seek_points(data))
    writer.finish()
    spec = _core.DecodeSpec(size=16, dtype="uint8")
    out = np.zeros(spec.shape, np.uint8)
    _core.decode_box(data, spec, out, x=0, y=0, width=600, height=600, flip=False, index=_core.SeekIndex(path))
    # Points are our own decoder's alone.
    assert _core.last_seek() == "used"
    assert (out == 128).all()
