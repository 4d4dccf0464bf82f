"""Faster R-CNN with a feature pyramid (Ren et al. 2015; Lin et al. 2017): the model of V2.0 section 4.2.1.

Images are not resized. State-dict keys are torchvision's. No shape depends on the content of images: each image has the
same number of proposals, sampled anchors and sampled regions, and masks mark the valid ones. So a training step never
waits for the GPU, and an evaluation waits once per batch, for the detections.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.workloads.models.resnet import ResNetStages
from hpcai500.workloads.operators import roi_align_levels, sorted_nms

# ----------------------------------------------------------------------------------------------------
# Anchors: the boxes around each cell of a pyramid level, relative to which proposals are coded (Ren et al. 2015).


Shapes = Sequence[Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class PlacedAnchors:
    """The anchors of an image, level after level: boxes (A, 4), and their number on each level."""

    boxes: Tensor
    counts: tuple[int, ...]


class Anchors(nn.Module):
    """Anchors of all levels, around the centres of the cells: (i + 0.5) * stride.

    torchvision's are around i * stride, the cells' corners. Cells tile the image, so their centres are equally far from
    opposite borders. Weights that were trained with torchvision's anchors load, because the keys are the same, but
    propose half a stride too far right and down.

    Args:
        shapes: (height, width) in pixels of the anchors of each level, finest level first; the same number on each.
        strides: image pixels per cell of each level.
    """

    def __init__(self, shapes: Shapes, strides: Sequence[int]) -> None:
        super().__init__()
        assert len(shapes) == len(strides), "as many levels of anchors as of features"
        self.strides = list(strides)
        self.per_cell = len(shapes[0])
        self._placed: dict[tuple[int, int, torch.device], PlacedAnchors] = {}
        for level, level_shapes in enumerate(shapes):
            sides = torch.tensor(level_shapes).flip(1)
            # Not in the state dict: they follow from the recipe.
            self.register_buffer(f"cell_{level}", torch.cat([-sides / 2, sides / 2], dim=1), persistent=False)

    def forward(self, height: int, width: int) -> PlacedAnchors:
        """The anchors of an image of height x width: h * w * per_cell of each level, row by row, cell by cell.

        A level's h and w are the image's divided by its stride and rounded up, as in the backbone.
        """
        if torch.compiler.is_compiling():
            return self._place(height, width)
        # A run has images of one or two sizes. Caching saves about sixty small operators per step.
        key = height, width, self.get_buffer("cell_0").device
        if key not in self._placed:
            with torch.inference_mode(mode=False):
                self._placed[key] = self._place(height, width)
        return self._placed[key]

    def _place(self, height: int, width: int) -> PlacedAnchors:
        levels = [
            self._of_level(level, -(-height // stride), -(-width // stride))
            for level, stride in enumerate(self.strides)
        ]
        return PlacedAnchors(torch.cat(levels), tuple(len(boxes) for boxes in levels))

    def _of_level(self, level: int, height: int, width: int) -> Tensor:
        cell, stride = self.get_buffer(f"cell_{level}"), self.strides[level]
        y = (torch.arange(height, device=cell.device) + 0.5) * stride
        x = (torch.arange(width, device=cell.device) + 0.5) * stride
        centres = torch.stack([x.expand(height, width), y[:, None].expand(height, width)], dim=-1).repeat(1, 1, 2)
        return (centres[:, :, None, :] + cell).reshape(-1, 4)


# ----------------------------------------------------------------------------------------------------
# Boxes (…, 4) as x1 y1 x2 y2 in pixels: overlap, clipping, and coding relative to another box.


# A box may grow at most 62.5-fold over its anchor: exp would overflow early in training (Ren et al.'s own code).
_LARGEST_LOG_SCALE = math.log(1000 / 16)

# Factors of (dx, dy) and (dw, dh), because the second stage's targets are otherwise small (Girshick 2015).
# Not tensors, which each use on a GPU would copy there.
PROPOSAL_WEIGHTS = (1.0, 1.0)
DETECTION_WEIGHTS = (10.0, 5.0)

Weights = tuple[float, float]


def area(boxes: Tensor) -> Tensor:
    """Width x height: (…, 4) -> (…)."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def iou(left: Tensor, right: Tensor) -> Tensor:
    """Intersection over union of each box of `left` (…, N, 4) with each of `right` (…, M, 4): (…, N, M).

    0 for empty boxes. The leading axes (images) are broadcast.
    """
    x1, y1, x2, y2 = left[..., :, None, :].unbind(-1)
    other_x1, other_y1, other_x2, other_y2 = right[..., None, :, :].unbind(-1)
    width = (torch.minimum(x2, other_x2) - torch.maximum(x1, other_x1)).clamp(min=0)
    height = (torch.minimum(y2, other_y2) - torch.maximum(y1, other_y1)).clamp(min=0)
    common = width * height
    union = area(left)[..., :, None] + area(right)[..., None, :] - common
    return (common / union).masked_fill(~(union > 0), 0)


def clip(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boxes (…, 4) clipped to an image."""
    x, y = boxes.unflatten(-1, (2, 2)).unbind(-1)
    return torch.stack([x.clamp(0, width), y.clamp(0, height)], dim=-1).flatten(-2)


def at_least(boxes: Tensor, side: float) -> Tensor:
    """(…, 4) -> (…) bool: boxes whose sides are both `side` pixels or more."""
    return (boxes[..., 2:] - boxes[..., :2] >= side).all(dim=-1)


def encode(boxes: Tensor, references: Tensor, weights: Weights) -> Tensor:
    """The codes (dx, dy, dw, dh) of Girshick et al. 2014 from `references` to `boxes`, both (…, 4), times `weights`."""
    size, reference_size = boxes[..., 2:] - boxes[..., :2], references[..., 2:] - references[..., :2]
    centre, reference_centre = boxes[..., :2] + 0.5 * size, references[..., :2] + 0.5 * reference_size
    shift = (centre - reference_centre) / reference_size
    return torch.cat([shift * weights[0], torch.log(size / reference_size) * weights[1]], dim=-1)


def decode(codes: Tensor, references: Tensor, weights: Weights) -> Tensor:
    """The inverse of `encode`: codes (N, …, 4) of references (N, 4) -> boxes (N, …, 4), in float32 or better.

    Both may have more leading axes, which must be equal.
    """
    codes = codes.to(references.dtype)
    shift, log_scale = codes[..., :2] / weights[0], codes[..., 2:] / weights[1]
    references = references.reshape(*references.shape[:-1], *[1] * (codes.ndim - references.ndim), 4)
    reference_size = references[..., 2:] - references[..., :2]
    centre = references[..., :2] + 0.5 * reference_size + shift * reference_size
    size = reference_size * torch.exp(log_scale.clamp(max=_LARGEST_LOG_SCALE))
    return torch.cat([centre - 0.5 * size, centre + 0.5 * size], dim=-1)


def take(values: Tensor, places: Tensor) -> Tensor:
    """Gather rows of boxes or codes: values (N, n, 4) at `places` (N, k) of each image -> (N, k, 4)."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[2]))


# ----------------------------------------------------------------------------------------------------
# Random numbers that select what a step trains on, from a seed for each image.


def uniform(seeds: Tensor, count: int, device: torch.device) -> Tensor:
    """(N,) int64 seeds on the host -> (N, count) float32 in [0, 1) on `device`, row i from seed i only.

    One operator, so that the compiler treats the seeds as data and does not recompile for new ones.
    """
    return _uniform(seeds, count, device)  # type: ignore[no-any-return]


@torch.library.custom_op("hpcai500::uniform", mutates_args=(), device_types="cpu")
def _uniform(seeds: Tensor, count: int, device: torch.device) -> Tensor:
    numbers = torch.empty(len(seeds), count, device=device)
    generator = _generator(device)
    for row, seed in zip(numbers, seeds.tolist(), strict=True):
        row.uniform_(generator=generator.manual_seed(seed))
    return numbers


@_uniform.register_fake
def _(seeds: Tensor, count: int, device: torch.device) -> Tensor:
    return torch.empty(len(seeds), count, device=device)


@cache
def _generator(device: torch.device) -> torch.Generator:
    """One for all images of all steps, reseeded for each, which is faster than a new one."""
    return torch.Generator(device)


# ----------------------------------------------------------------------------------------------------
# The truth of a batch, and the seed of each image's random choices.


BACKGROUND_LABEL = 0


@dataclass(frozen=True)
class Targets:
    """Truth of a batch.

    Attributes:
        boxes: (N, M, 4) as x1 y1 x2 y2 in pixels.
        labels: (N, M) int64, from 1; BACKGROUND_LABEL in places without a box.
        seeds: (N,) int64, always on the host: for drawing the anchors and proposals that an image trains on.
    """

    boxes: Tensor
    labels: Tensor
    seeds: Tensor

    def to(self, device: torch.device) -> Targets:
        """Copy boxes and labels to `device` asynchronously; the seeds stay on the host."""
        boxes, labels = (_copied(tensor, device) for tensor in (self.boxes, self.labels))
        return Targets(boxes, labels, self.seeds)

    @property
    def present(self) -> Tensor:
        """(N, M) bool: where there is a box."""
        return self.labels != BACKGROUND_LABEL

    def boxes_of(self, image: int) -> Tensor:
        """The boxes (m, 4) of one image. On a GPU this waits for the device."""
        return self.boxes[image, self.present[image]]

    def labels_of(self, image: int) -> Tensor:
        """The labels (m,) of one image. On a GPU this waits for the device."""
        return self.labels[image, self.present[image]]

    def keys(self, count: int) -> Tensor:
        """(N, count) uniform random numbers in [0, 1) on the boxes' device.

        An image's numbers depend on its seed only: they are the same after a restart, on any rank and in any batch.
        """
        return uniform(self.seeds, count, self.boxes.device)


def blank_targets(images: int, places: int, height: int, width: int) -> Targets:
    """One box in each image of `height` x `width`, padded to `places`: the shapes are those of real targets."""
    boxes, labels = torch.zeros(images, places, 4), torch.zeros(images, places, dtype=torch.int64)
    boxes[:, 0], labels[:, 0] = torch.tensor([width / 4, height / 4, width / 2, height / 2]), 1
    return Targets(boxes, labels, torch.zeros(images, dtype=torch.int64))


def _copied(tensor: Tensor, device: torch.device) -> Tensor:
    # A copy from unpinned memory would wait for all work queued on the GPU.
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


# ----------------------------------------------------------------------------------------------------
# Matching anchors or proposals with true boxes, and sampling those that a step trains on (Ren et al. 2015).
#
# All images of a batch at once, in tensors whose shapes do not depend on the content of images. Masks mark unused
# places, so the host never has to ask the GPU for a count.


BACKGROUND = -1
IGNORED = -2


def match(
    truth: Tensor,
    present: Tensor,
    candidates: Tensor,
    *,
    foreground: float,
    background: float,
    every_truth: bool = False,
) -> Tensor:
    """For each candidate of each image the place of the true box that it overlaps most: (N, A) int64.

    BACKGROUND if that overlap (IoU) is below `background`, IGNORED between that and `foreground`. With `every_truth`,
    the best candidates of each true box match it, however small the overlap is.

    Args:
        truth: boxes (N, M, 4).
        present: (N, M) bool, whether a place of `truth` has a box.
        candidates: boxes (N, A, 4), or (A, 4) for every image.
    """
    if truth.shape[1] == 0:
        return torch.full((truth.shape[0], candidates.shape[-2]), BACKGROUND, device=candidates.device)
    # Below every real overlap, so that a place without a box is never the best.
    overlaps = iou(truth, candidates).masked_fill(~present[:, :, None], -1)
    best, index = overlaps.max(dim=1)
    matches = index.masked_fill(best < foreground, IGNORED).masked_fill(best < background, BACKGROUND)
    if every_truth and overlaps.shape[2] > 0:
        best_of_truth = overlaps.amax(dim=2, keepdim=True)
        is_best = ((overlaps == best_of_truth) & (best_of_truth > 0)).any(dim=1)
        matches = torch.where(is_best, index, matches)
    return matches


@dataclass(frozen=True)
class Sample:
    """The candidates a step trains on, in the same number of places for each image: positive, background, unused.

    Attributes:
        places: (N, S) int64, the candidates that were drawn; arbitrary in unused places.
        positive: (N, S) bool, whether the drawn candidate is positive.
        used: (N, S) bool, whether a candidate was drawn.
        most_positives: no place from this one on is positive.
    """

    places: Tensor
    positive: Tensor
    used: Tensor
    most_positives: int

    def count(self) -> Tensor:
        """Number of candidates drawn in the batch, at least 1 as a divisor: a float32 scalar on the device."""
        return self.used.sum(dtype=torch.float32).clamp(min=1)


def sample(matches: Tensor, keys: Tensor, size: int, positive_fraction: float) -> Sample:
    """Draw at most `size` candidates of each image, at most that fraction of them positive, the rest background.

    Args:
        matches: (N, A) from `match`.
        keys: (N, A), random numbers of 0 or more: the candidates with the largest are drawn.
        size: S, or less if there are fewer candidates.
        positive_fraction: of `size`, rounded down.
    """
    candidates = matches.shape[1]
    places, most_positives = min(size, candidates), min(int(size * positive_fraction), candidates)
    positives, count = _draw(matches >= 0, keys, most_positives)
    negatives, available = _draw(matches == BACKGROUND, keys, places)
    place = torch.arange(places, device=matches.device)[None]
    positive = place < count
    taken = torch.where(positive, place, most_positives + place - count)
    drawn = torch.cat([positives, negatives], dim=1).gather(1, taken)
    return Sample(drawn, positive, place < count + available, most_positives)


def _draw(eligible: Tensor, keys: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The eligible candidates with the largest keys, best first (N, most), and their number (N, 1)."""
    best = keys.masked_fill(~eligible, -1).topk(most, dim=1)
    return best.indices, (best.values >= 0).sum(dim=1, keepdim=True)


# ----------------------------------------------------------------------------------------------------
# Region proposal network (Ren et al. 2015, section 3): regions of an image that may contain an object.


_SMOOTH_L1_BETA = 1 / 9
# A thinner proposal is empty.
_LEAST_SIDE_OF_PROPOSALS_PIXELS = 1e-3


@dataclass(frozen=True)
class ProposalOptions:
    """Numbers of proposals, and their training samples. Pairs are for training and for evaluation."""

    before_nms: tuple[int, int]
    after_nms: tuple[int, int]
    nms_iou: float
    foreground_iou: float
    background_iou: float
    samples: int
    positive_fraction: float


@dataclass(frozen=True)
class Proposals:
    """The same number of places for each image, best first: boxes (N, K, 4); present (N, K), whether there is a box."""

    boxes: Tensor
    present: Tensor


class ProposalHead(nn.Module):
    """Objectness and box codes of each anchor, by the same convolutions on every level."""

    def __init__(self, channels: int, anchors_per_cell: int) -> None:
        super().__init__()
        # In two containers, because torchvision's keys say conv.0.0.
        self.conv = nn.Sequential(nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1)))
        self.cls_logits = nn.Conv2d(channels, anchors_per_cell, 1)
        self.bbox_pred = nn.Conv2d(channels, 4 * anchors_per_cell, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # there is a bias

    def forward(self, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Levels (N, C, h, w) -> logits (N, A) and codes (N, A, 4) of all anchors, level by level."""
        hidden = [F.relu(self.conv(features)) for features in levels]
        logits = [self.cls_logits(x).permute(0, 2, 3, 1).flatten(1) for x in hidden]
        codes = [self.bbox_pred(x).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4)) for x in hidden]
        return torch.cat(logits, dim=1), torch.cat(codes, dim=1)


class ProposalNetwork(nn.Module):
    """Anchors, the head that scores them, the selection of proposals, and the losses."""

    def __init__(self, head: ProposalHead, anchors: Anchors, options: ProposalOptions) -> None:
        super().__init__()
        self.head = head
        self.anchors = anchors
        self.options = options

    @torch.no_grad()
    def propose(self, logits: Tensor, codes: Tensor, anchors: PlacedAnchors, image_size: tuple[int, int]) -> Proposals:
        """Proposals for images of `image_size` (H, W), from the logits (N, A) and codes (N, A, 4) of all anchors."""
        before, after = (pair[0 if self.training else 1] for pair in (self.options.before_nms, self.options.after_nms))
        scores, places = _best_of_levels(logits, anchors.counts, before)
        boxes = clip(decode(take(codes, places), anchors.boxes[places], PROPOSAL_WEIGHTS), *image_size)
        usable = at_least(boxes, _LEAST_SIDE_OF_PROPOSALS_PIXELS)
        stays = sorted_nms(
            boxes.masked_fill(~usable[..., None], torch.nan),
            [min(before, count) for count in anchors.counts],
            self.options.nms_iou,
        )
        stays = stays & usable
        order = scores.masked_fill(~stays, -torch.inf).sort(dim=1, descending=True, stable=True).indices[:, :after]
        present = stays.gather(1, order)
        return Proposals(take(boxes, order).masked_fill(~present[..., None], 0), present)

    def losses(
        self, logits: Tensor, codes: Tensor, anchors: PlacedAnchors, targets: Targets, keys: Tensor
    ) -> dict[str, Tensor]:
        """Binary cross entropy of objectness and smooth L1 of the box codes, both averaged over the sampled anchors.

        Logits (N, A) and codes (N, A, 4) are of all anchors; `keys` (N, A) from `Targets.keys` determine the sample.
        """
        chosen, true_codes = self._choose(anchors, targets, keys)
        count = chosen.count()
        objectness = F.binary_cross_entropy_with_logits(
            logits.gather(1, chosen.places).float(), chosen.positive.float(), chosen.used.float(), reduction="sum"
        )
        first = slice(chosen.most_positives)
        # In places that are not positive, both codes are 0: no error, no gradient.
        found = take(codes, chosen.places[:, first]).float().masked_fill(~chosen.positive[:, first, None], 0)
        boxes = F.smooth_l1_loss(found, true_codes, beta=_SMOOTH_L1_BETA, reduction="sum")
        return {"objectness": objectness / count, "proposal_boxes": boxes / count}

    @torch.no_grad()
    def _choose(self, anchors: PlacedAnchors, targets: Targets, keys: Tensor) -> tuple[Sample, Tensor]:
        """The anchors to train on, and the true codes (N, P, 4) of the positive ones; 0 elsewhere."""
        options = self.options
        matches = match(
            targets.boxes,
            targets.present,
            anchors.boxes,
            foreground=options.foreground_iou,
            background=options.background_iou,
            every_truth=True,
        )
        chosen = sample(matches, keys, options.samples, options.positive_fraction)
        places = chosen.places[:, : chosen.most_positives]
        truth = take(targets.boxes, matches.gather(1, places).clamp(min=0))
        codes = encode(truth, anchors.boxes[places], PROPOSAL_WEIGHTS)
        return chosen, codes.masked_fill(~chosen.positive[:, : chosen.most_positives, None], 0)


def _best_of_levels(logits: Tensor, counts: Sequence[int], most: int) -> tuple[Tensor, Tensor]:
    """At most `most` anchors of each image and level, best first: their logits and places, both (N, K)."""
    scores, places, start = [], [], 0
    for of_level in logits.float().split(list(counts), dim=1):
        best = of_level.topk(min(most, of_level.shape[1]), dim=1)
        scores.append(best.values)
        places.append(best.indices + start)
        start += of_level.shape[1]
    return torch.cat(scores, dim=1), torch.cat(places, dim=1)


# ----------------------------------------------------------------------------------------------------
# Feature pyramid network (Lin et al. 2017): the stages of a backbone, merged top-down.


def _convolution(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    """One convolution, in a container as in torchvision's keys."""
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    nn.init.kaiming_uniform_(convolution.weight, a=1)
    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]  # there is a bias
    return nn.Sequential(convolution)


class FeaturePyramid(nn.Module):
    """Projects every stage to `outputs` channels and adds the coarser stages to each.

    `inputs` are the channels of the stages, finest first.
    """

    def __init__(self, inputs: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.inner_blocks = nn.ModuleList(_convolution(channels, outputs, 1) for channels in inputs)
        self.layer_blocks = nn.ModuleList(_convolution(outputs, outputs, 3) for _ in inputs)

    def forward(self, stages: Sequence[Tensor]) -> list[Tensor]:
        """Stages, finest first -> a level for each, and one more at half the resolution of the coarsest."""
        merged = self.inner_blocks[-1](stages[-1])
        levels = [self.layer_blocks[-1](merged)]
        finer = list(zip(stages, self.inner_blocks, self.layer_blocks, strict=True))[:-1]
        for stage, inner, layer in reversed(finer):
            lateral = inner(stage)
            merged = lateral + F.interpolate(merged, size=lateral.shape[-2:], mode="nearest")
            levels.insert(0, layer(merged))
        return [*levels, F.max_pool2d(levels[-1], 1, 2)]


class Backbone(nn.Module):
    """A residual network under a feature pyramid."""

    def __init__(self, body: ResNetStages, channels: int) -> None:
        super().__init__()
        self.body = body
        self.fpn = FeaturePyramid(body.stage_channels, channels)

    @property
    def strides(self) -> list[int]:
        """Image pixels per cell of each level, finest level first: 4, 8, 16, …"""
        return [4 * 2**level for level in range(len(self.body.stage_names) + 1)]

    def forward(self, images: Tensor) -> list[Tensor]:
        """(N, 16, H, W) -> levels (N, channels, H / stride, W / stride), rounded up."""
        levels: list[Tensor] = self.fpn(self.body.stages(images))
        return levels


# ----------------------------------------------------------------------------------------------------
# The second stage (Girshick 2015; Lin et al. 2017): the class of each proposal, and its refined box.


_POOLED = 7
_SAMPLING_RATIO = 2
# A thinner detection is discarded.
_LEAST_SIDE_OF_DETECTIONS_PIXELS = 1e-2
# The label that cross entropy ignores.
_NO_LABEL = -100


@dataclass(frozen=True)
class Detections:
    """Detections of one image, best first: boxes (D, 4) in pixels, scores (D,), labels (D,) from 1; on the host."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor


@dataclass(frozen=True)
class DetectionOptions:
    """Training samples of the second stage, and the selection of its detections."""

    foreground_iou: float
    samples: int
    positive_fraction: float
    score: float
    nms_iou: float
    most: int


class RegionPooling(nn.Module):
    """RoIAlign on the level that fits a region's size (Lin et al. 2017, equation 1).

    Args:
        strides: image pixels per cell of each level; the coarsest level of all is not pooled.
        canonical_side: a region of this side (pixels) is pooled from the level with stride 16.
    """

    def __init__(self, strides: Sequence[int], canonical_side: float) -> None:
        super().__init__()
        self.strides = list(strides)
        self.canonical_side = canonical_side

    def forward(self, levels: Sequence[Tensor], regions: Tensor) -> Tensor:
        """Levels (N, C, h, w) and regions (K, 5) as image x1 y1 x2 y2 -> (K, C, 7, 7)."""
        scales = [1 / stride for stride in self.strides]
        return roi_align_levels(levels, regions, self._levels(regions), _POOLED, scales, _SAMPLING_RATIO)

    def _levels(self, regions: Tensor) -> Tensor:
        side = area(regions[:, 1:]).clamp(min=0).sqrt()
        # 1e-6 prevents rounding from moving a region of exactly the canonical size to a finer level.
        power = torch.floor(math.log2(16) + torch.log2(side / self.canonical_side + 1e-6))
        finest = int(math.log2(self.strides[0]))
        return (power - finest).clamp(0, len(self.strides) - 1).to(torch.int64)


class BoxHead(nn.Module):
    """Two fully connected layers, each with ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.fc6 = nn.Linear(inputs, outputs)
        self.fc7 = nn.Linear(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(K, C, 7, 7) -> (K, outputs)."""
        return F.relu(self.fc7(F.relu(self.fc6(x.flatten(1)))))


class BoxPredictor(nn.Module):
    """Class scores, and one box code for each class."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(inputs, classes)
        self.bbox_pred = nn.Linear(inputs, 4 * classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(K, inputs) -> logits (K, classes) and codes (K, classes, 4)."""
        return self.cls_score(x), self.bbox_pred(x).reshape(len(x), self.cls_score.out_features, 4)


class RegionHeads(nn.Module):
    """Pools proposals, classifies them and refines their boxes."""

    def __init__(
        self, pooling: RegionPooling, channels: int, width: int, classes: int, options: DetectionOptions
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.pooled_shape = (channels, _POOLED, _POOLED)
        self.box_head = BoxHead(channels * _POOLED * _POOLED, width)
        self.box_predictor = BoxPredictor(width, classes)
        self.options = options

    def forward(self, levels: Sequence[Tensor], regions: Tensor) -> tuple[Tensor, Tensor]:
        """Levels and regions (K, 5) -> logits (K, classes) and codes (K, classes, 4)."""
        return self.predict(self.pooling(levels, regions))

    def predict(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Pooled regions (K, C, 7, 7) -> logits (K, classes) and codes (K, classes, 4)."""
        logits, codes = self.box_predictor(self.box_head(pooled))
        return logits, codes

    def losses(
        self, levels: Sequence[Tensor], proposals: Proposals, targets: Targets, keys: Tensor
    ) -> dict[str, Tensor]:
        """Cross entropy of the class and smooth L1 of the box codes, both averaged over the sampled regions.

        `keys` (N, K + M), from `Targets.keys`, determine the sample of the K proposals and M places of true boxes.
        """
        chosen, regions, labels, true_codes = self._choose(proposals, targets, keys)
        count = chosen.count()
        logits, codes = self(levels, _rows(regions))
        classification = F.cross_entropy(logits.float(), labels.flatten(), ignore_index=_NO_LABEL, reduction="sum")
        first = slice(chosen.most_positives)
        classes = labels[:, first].clamp(min=0)[..., None, None].expand(-1, -1, 1, 4)
        found = codes.unflatten(0, regions.shape[:2])[:, first].gather(2, classes).squeeze(2).float()
        # In places that are not positive, both codes are 0: no error, no gradient.
        found = found.masked_fill(~chosen.positive[:, first, None], 0)
        boxes = F.smooth_l1_loss(found, true_codes, beta=_SMOOTH_L1_BETA, reduction="sum")
        return {"classification": classification / count, "boxes": boxes / count}

    @torch.no_grad()
    def _choose(self, proposals: Proposals, targets: Targets, keys: Tensor) -> tuple[Sample, Tensor, Tensor, Tensor]:
        """The sample, its regions (N, S, 4) and labels (N, S), and the true codes (N, P, 4) of its first P places.

        In unused places the region is empty and the label is _NO_LABEL; in places that are not positive, codes are 0.
        """
        options = self.options
        # True boxes are added to the proposals, so that the second stage learns before the first one finds anything.
        candidates = torch.cat([proposals.boxes, targets.boxes], dim=1)
        present = torch.cat([proposals.present, targets.present], dim=1)
        matches = match(
            targets.boxes,
            targets.present,
            candidates,
            foreground=options.foreground_iou,
            background=options.foreground_iou,
        ).masked_fill(~present, IGNORED)
        chosen = sample(matches, keys, options.samples, options.positive_fraction)
        regions = take(candidates, chosen.places).masked_fill(~chosen.used[..., None], 0)
        truth = matches.gather(1, chosen.places).clamp(min=0)
        labels = targets.labels.gather(1, truth).masked_fill(~chosen.positive, BACKGROUND_LABEL)
        labels = labels.masked_fill(~chosen.used, _NO_LABEL)
        first = slice(chosen.most_positives)
        codes = encode(take(targets.boxes, truth[:, first]), regions[:, first], DETECTION_WEIGHTS)
        return chosen, regions, labels, codes.masked_fill(~chosen.positive[:, first, None], 0)

    def detect(self, levels: Sequence[Tensor], proposals: Proposals, image_size: tuple[int, int]) -> list[Detections]:
        """The detections of each image: at most `most`, after NMS within each class. Waits for the device once."""
        found = self._found(levels, proposals, image_size).cpu()
        of_images = (rows[rows[:, -1] > 0] for rows in found)
        return [Detections(rows[:, :4], rows[:, 4], rows[:, 5].to(torch.int64)) for rows in of_images]

    def _found(self, levels: Sequence[Tensor], proposals: Proposals, image_size: tuple[int, int]) -> Tensor:
        """The best detections of each image as (N, most, 7): x1 y1 x2 y2 score label, and 1 (0 in unused rows)."""
        options = self.options
        logits, codes = self(levels, _rows(proposals.boxes))
        shape = proposals.present.shape
        scores = logits.float().softmax(dim=1).unflatten(0, shape)[..., 1:]
        boxes = decode(codes.unflatten(0, shape)[:, :, 1:], proposals.boxes, DETECTION_WEIGHTS)
        boxes = clip(boxes, *image_size)
        eligible = (
            (scores > options.score) & at_least(boxes, _LEAST_SIDE_OF_DETECTIONS_PIXELS) & proposals.present[..., None]
        )
        stays = self._suppressed(boxes, scores, eligible)
        best = scores.masked_fill(~stays, -torch.inf).flatten(1).sort(dim=1, descending=True, stable=True)
        places = best.indices[:, : options.most]
        labels = places % scores.shape[2] + 1
        chosen, present = take(boxes.flatten(1, 2), places), stays.flatten(1).gather(1, places)
        columns = (best.values[:, : options.most], labels, present)
        return torch.cat([chosen, *(column.to(chosen.dtype)[..., None] for column in columns)], dim=2)

    def _suppressed(self, boxes: Tensor, scores: Tensor, eligible: Tensor) -> Tensor:
        """Which of the eligible boxes (N, K, classes, 4) survive NMS within their class: (N, K, classes) bool."""
        images, places, classes = scores.shape
        boxes = boxes.masked_fill(~eligible[..., None], torch.nan)
        descending = scores.masked_fill(~eligible, -torch.inf).sort(dim=1, descending=True, stable=True).indices
        ordered = boxes.gather(1, descending[..., None].expand(-1, -1, -1, 4)).transpose(1, 2).flatten(1, 2)
        stays = sorted_nms(ordered, [places] * classes, self.options.nms_iou)
        stays = stays.reshape(images, classes, places).transpose(1, 2)
        return torch.zeros_like(eligible).scatter(1, descending, stays) & eligible


def _rows(regions: Tensor) -> Tensor:
    """Regions (N, S, 4) -> (N S, 5), the number of the image first."""
    images = torch.arange(regions.shape[0], dtype=regions.dtype, device=regions.device)
    return torch.cat([images[:, None, None].expand(-1, regions.shape[1], 1), regions], dim=2).flatten(0, 1)


# ----------------------------------------------------------------------------------------------------
# The model: its dense part, which can be compiled or captured as a whole, and the part that depends on values.


class DenseDetector(nn.Module):
    """The part whose work depends only on the images' shape: backbone, pyramid and proposal head.

    It has no random numbers and no wait for the device, so that it can be compiled or captured as a whole.
    """

    def __init__(self, backbone: Backbone, head: ProposalHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Images (N, C, H, W) -> the levels for pooling, then logits (N, A) and codes (N, A, 4)."""
        levels = self.backbone(images)
        # The coarsest level is used for proposals only (Lin et al. 2017, section 4.1).
        return (*levels[:-1], *self.head(levels))


class FasterRCNN(nn.Module):
    """Backbone, proposals, detections: losses in training, detections in evaluation."""

    def __init__(self, backbone: Backbone, rpn: ProposalNetwork, roi_heads: RegionHeads) -> None:
        super().__init__()
        self.backbone = backbone
        self.rpn = rpn
        self.roi_heads = roi_heads
        # Not registered as a submodule: the state dict would hold its weights twice.
        self._unregistered = (DenseDetector(backbone, rpn.head),)

    @property
    def dense(self) -> DenseDetector:
        """The dense part that `forward` calls. Replace its own `forward` to use a CUDA graph or a compiler."""
        return self._unregistered[0]

    def train(self, mode: bool = True) -> FasterRCNN:
        """As `nn.Module.train`, including the dense part."""
        super().train(mode)
        self.dense.train(mode)
        return self

    def forward(self, images: Tensor, targets: Targets | None = None) -> dict[str, Tensor] | list[Detections]:
        """Images (N, C, H, W), in training mode with targets -> the four losses, else each image's detections."""
        *levels, logits, codes = self.dense(images)
        return self.conclude(levels, logits, codes, (images.shape[-2], images.shape[-1]), targets)

    def after_backbone(
        self, levels: Sequence[Tensor], size: tuple[int, int], targets: Targets | None
    ) -> dict[str, Tensor] | list[Detections]:
        """Everything after the backbone: its levels for images of `size` (H, W) -> as `forward`."""
        logits, codes = self.rpn.head(levels)
        return self.conclude(levels[:-1], logits, codes, size, targets)

    def conclude(
        self, levels: Sequence[Tensor], logits: Tensor, codes: Tensor, size: tuple[int, int], targets: Targets | None
    ) -> dict[str, Tensor] | list[Detections]:
        """Everything after the dense part: its outputs for images of `size` (H, W) -> as `forward`."""
        if targets is None:
            proposals = self.rpn.propose(logits, codes, self.rpn.anchors(*size), size)
            return self.roi_heads.detect(levels, proposals, size)
        candidates = self.rpn.options.after_nms[0] + targets.boxes.shape[1]
        keys = targets.keys(max(logits.shape[1], candidates))
        return self.losses(levels, logits, codes, size, targets, keys)

    def losses(
        self,
        levels: Sequence[Tensor],
        logits: Tensor,
        codes: Tensor,
        size: tuple[int, int],
        targets: Targets,
        keys: Tensor,
    ) -> dict[str, Tensor]:
        """The four losses; `keys` (N, …) are `Targets.keys`, at least as many as there are anchors or candidates.

        All shapes are fixed, so it can be compiled as a whole.
        """
        anchors = self.rpn.anchors(*size)
        proposals = self.rpn.propose(logits, codes, anchors, size)
        candidates = proposals.boxes.shape[1] + targets.boxes.shape[1]
        return {
            **self.rpn.losses(logits, codes, anchors, targets, keys[:, : logits.shape[1]]),
            **self.roi_heads.losses(levels, proposals, targets, keys[:, :candidates]),
        }


class CountedDetector(nn.Module):
    """The convolutions and matrix products of one step, for counting operations, with given regions."""

    def __init__(self, detector: FasterRCNN) -> None:
        super().__init__()
        stages = [f"backbone.body.{name}" for name in ("conv1", *detector.backbone.body.stage_names)]
        self.part_names = (*stages, "backbone.fpn", "rpn.head", "roi_heads.box_head", "roi_heads.box_predictor")
        self.backbone, self.rpn, self.roi_heads = detector.backbone, detector.rpn, detector.roi_heads

    def forward(self, images: Tensor, regions: Tensor) -> Sequence[Sequence[Tensor]]:
        """Images (N, C, H, W) and regions (K, 5) -> all inputs of the loss."""
        levels = self.backbone(images)
        # The level of a region depends on data that a count does not have; pooling itself is not counted. This stand-in
        # has the pooled shape and, because it depends on the levels, their gradient.
        pooled = levels[0].mean().expand(len(regions), *self.roi_heads.pooled_shape)
        return [self.rpn.head(levels), self.roi_heads.predict(pooled)]
