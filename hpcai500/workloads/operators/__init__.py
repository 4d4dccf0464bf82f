"""Detection's own operators, on the compiled core: torch has none, and torchvision's are in a library of its own.

They work in eager mode, under autograd, autocast and torch.compile, on CPU and CUDA tensors.
"""

from __future__ import annotations

from hpcai500.workloads.operators.nms import batched_nms, nms
from hpcai500.workloads.operators.roi_align import roi_align
from hpcai500.workloads.operators.roi_align_levels import roi_align_levels
from hpcai500.workloads.operators.sorted_nms import sorted_nms

__all__ = ["batched_nms", "nms", "roi_align", "roi_align_levels", "sorted_nms"]
