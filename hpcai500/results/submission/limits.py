"""How much of a submission is read: it comes from strangers, and no honest one is near these numbers.

What is counted before it is read costs nothing, so each number bounds memory and time, whatever a file says of itself.
"""

from __future__ import annotations

KIB, MIB, GIB = 2**10, 2**20, 2**30

MOST_ENTRIES = 65_535
"""Files: what ZIP counts without its 64-bit form; ten runs on 6,000 metered nodes have fewer."""
LONGEST_PATH = 500
"""Characters of a path: the manifest's own limit."""
MOST_EXTRACTED_BYTES = 4 * GIB
"""All files but checkpoints: ten records of a thousand nodes take 1 GB."""
HIGHEST_RATIO = 400
"""Of extracted to packed bytes, over all deflated files: descriptions of a thousand equal nodes reach 136."""
RATIO_FREE_BYTES = 16 * MIB
"""So little is no bomb at whatever ratio."""

MANIFEST_BYTES = 16 * MIB
"""256 bytes for each of the most files."""
MANIFEST_VALUES = 1_000_000
"""Seven for each of the most files, and as many as that again for what was left out."""
SIGNATURE_BYTES = 64 * KIB
"""An RSA signature of 16,384 bits is 6 KB."""
TEXT_BYTES = 1 * MIB
"""The longest source file has 20 KB."""
RECIPE_BYTES = 64 * KIB
"""A recipe has 3 KB."""
SYSTEM_BYTES = 64 * MIB
"""`system.json`: 1,024 nodes of 60 KB each, indented."""
LOG_BYTES = 128 * MIB
"""A log of events: twice the description of such a system (a resumed run tells it again), and 40 MB of the rest."""
LINE_BYTES = 64 * MIB
"""One event: that description."""
MOST_EVENTS = 100_000
"""Of one log: 90 epochs of 9 events, and a hundred resumptions, make fewer than 10,000."""
POWER_BYTES = 128 * MIB
"""A day of samples, ten a second, of eight devices."""
POWER_ROWS = 2_000_000
"""The same: 864,000 rows; twice that and more for a run of two days."""
CELL_BYTES = 64 * KIB
"""A row of samples: 8 devices take 200 bytes."""
PICTURE_BYTES = 64 * MIB
"""A picture of detections has 2 MB."""
PREDICTION_BYTES = 512 * MIB
"""What a member says of the 50,000 images of ImageNet's evaluation set: 200 MB."""
TRACE_BYTES = 512 * MIB
"""A timeline of 4,096 ranks."""
ATTACHED_LOG_BYTES = 256 * MIB
"""A log given by hand."""

MOST_VALUES = 4_000_000
"""JSON values of one file: 1,024 nodes of 1,500 values each, twice; so many take about 0.5 GB of memory in Python."""
MOST_VALUES_IN_ALL = 40_000_000
"""JSON values of all files: ten such records."""
DEEPEST = 60
"""Levels of JSON: an honest event has 8."""
LARGEST_INTEGER = 2**64
"""No counter of a computer has more; beyond 2**1024 an integer is no float."""
