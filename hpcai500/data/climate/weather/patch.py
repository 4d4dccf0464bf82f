"""The part of the grid that one pattern of the weather covers, with coordinates of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcai500.data.climate.weather.fields import SHIPPED_HEIGHT, SHIPPED_WIDTH, Grid, Plane


@dataclass(frozen=True)
class Extent:
    """An upright ellipse on the grid, or the box around it, in rows and columns; fractions are allowed.

    `half_height` and `half_width` are the distances from the middle to the edges.
    """

    row: float
    column: float
    half_height: float
    half_width: float

    @property
    def box(self) -> tuple[int, int, int, int]:
        """(ymin, xmin, ymax, xmax): the smallest box of whole pixels around the ellipse; maxima are exclusive."""
        return (
            int(np.floor(self.row - self.half_height)),
            int(np.floor(self.column - self.half_width)),
            int(np.ceil(self.row + self.half_height)),
            int(np.ceil(self.column + self.half_width)),
        )


class Patch:
    """The pixels in the box of `extent`, wrapped around the globe.

    Attributes:
        east, north: distance of each pixel's middle from the middle of the extent, in its half-widths and
            half-heights; shapes (1, columns) and (rows, 1).
        poleward: `north`, turned round in the southern hemisphere.
        hemisphere: 1 in the north, -1 in the south.
    """

    def __init__(self, extent: Extent, grid: Grid) -> None:
        ymin, xmin, ymax, xmax = extent.box
        rows = np.arange(max(ymin, 0), min(ymax, grid.height))
        columns = np.arange(xmin, xmax)
        self.north: Plane = ((rows + 0.5 - extent.row) / extent.half_height).astype(np.float32)[:, None]
        self.east: Plane = ((columns + 0.5 - extent.column) / extent.half_width).astype(np.float32)[None, :]
        self.hemisphere = 1 if extent.row >= grid.height / 2 else -1
        self.poleward: Plane = self.north * np.float32(self.hemisphere)
        self._where = np.ix_(rows, columns % grid.width)

    def fade(self) -> Plane:
        """1 in the middle, 0 from the ellipse outwards: 1 - r^2."""
        inside: Plane = np.maximum(1 - (self.east**2 + self.north**2), 0)
        return inside

    def add(self, field: Plane, pattern: npt.NDArray[np.floating]) -> None:
        """Add `pattern`, given on the patch, to `field`, given on the grid."""
        field[self._where] += pattern.astype(np.float32, copy=False)


def pixel_size(grid: Grid) -> tuple[float, float]:
    """Rows and columns for one pixel of the shipped grid.

    On grids below a ninth of the shipped one storms are larger than on the globe: of fewer pixels, nothing is left.
    """
    return max(grid.height / SHIPPED_HEIGHT, 1 / 9), max(grid.width / SHIPPED_WIDTH, 1 / 9)
