"""The one way from an image to probabilities at its pixels.

    image ─ resize ─ views, tiles ─ model ─ logits at the nodes ─ mean of views ─ [refinement] ─ upsampled in strips

Views of an image (mirrored, at other scales) are joined at the nodes: the mean of their marginals, P = ¹⁄V Σ_v P_v,
each on the node grid of the image itself; log P then replaces the logits. Images above the model's working size are
reduced first, and images larger than a tile are predicted in tiles. Images of one size go through the model together.

On a CPU the convolutions of backbone and neck are fused (`fused`). The fused copy is made on the first call, and again
when the parameters have changed or moved. It is not pickled, because oneDNN's kernels cannot be.

Refinement takes the logits as unary potentials of a dense CRF on the image's colours,

    P(y) ∝ exp( Σ_i logits_i(y_i) − Σ_{i<j} k(i, j) [y_i ≠ y_j] ),      by mean field (`messagenet.inference.dense`)

which moves label boundaries to edges in the image. A large image is refined in bands over its whole width, to bound
memory; a band also sees `MARGIN` standard deviations of the widest kernel above and below.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn import functional

from messagenet.data.images import ImageArray, read_image, to_rgb
from messagenet.errors import InputError
from messagenet.geometry import Features, bilinear_sample, map_size, node_centres, pixel_strips, pixel_to_node
from messagenet.inference.dense import DEEPLAB, DenseGraph, DenseMeanField, Kernel
from messagenet.message_passing import MessagePassing
from messagenet.message_passing.fused_sum import in_parts
from messagenet.models import SegmentationModel
from messagenet.models.backbones import fused, has_bf16_instructions
from messagenet.models.backbones.fused import State, tensor_state
from messagenet.models.base import Precision, at_least_float32, head_trait
from messagenet.prediction.tiles import join_tiles
from messagenet.settings import convert

Forward = Callable[[Tensor], Tensor]
AnyImage = ImageArray | Image.Image | str | Path
MARGIN = 2.0


@dataclass(frozen=True)
class Refinement:
    """How to refine.

    Attributes:
        kernels: What ties two pixels; DeepLab's by default.
        iterations: Of mean field.
        pixels: How many pixels are refined in one piece.
    """

    kernels: tuple[Kernel, ...] = DEEPLAB
    iterations: int = 10
    pixels: int = 2_000_000

    def __post_init__(self) -> None:
        if self.pixels < 1:
            raise InputError(f"pixels is {self.pixels}; refine at least one at a time, such as 2000000")

    def strips(self, image: npt.NDArray[np.uint8], logits: Tensor, stride: float) -> Iterator[Tensor]:
        """Refined logits (K, rows, W) of successive bands of an image (H, W, 3), from node logits (K, h, w)."""
        height, width = image.shape[:2]
        margin = math.ceil(MARGIN * max(kernel.position for kernel in self.kernels))
        rows = height if height * width <= self.pixels else max(margin, self.pixels // width - 2 * margin)
        engine = DenseMeanField(self.iterations)
        across = pixel_to_node(torch.arange(width, device=logits.device, dtype=torch.float64) + 0.5, stride)
        for start in range(0, height, rows):
            stop = min(start + rows, height)
            top, bottom = max(0, start - margin), min(height, stop + margin)
            down = torch.arange(top, bottom, device=logits.device, dtype=torch.float64) + 0.5
            unary = bilinear_sample(logits, pixel_to_node(down, stride), across)  # (K, bottom - top, W)
            colours = torch.from_numpy(np.ascontiguousarray(image[top:bottom].transpose(2, 0, 1)))
            graph = DenseGraph(colours.to(logits.device).to(logits.dtype) / 255, self.kernels)
            yield engine.run(graph, unary).logits[:, start - top : stop - top]


@dataclass(frozen=True)
class PredictOptions:
    """How to predict.

    Attributes:
        flip: Also predict the mirror image and average.
        scales: Sizes at which to predict and average, as factors of the image's, or of what it is reduced to.
        tile: Largest side, in pixels, that is predicted in one piece; larger images are tiled.
        overlap: How far tiles overlap, in pixels; None for a quarter of a tile, at most 256.
        longest_side: Larger images are reduced to this many pixels first, and the answer is enlarged; None for what
            the model is for, 0 for never.
        refine: A dense CRF on top, if there is to be one.
        iterations: Of learned messages; None for as many as the model was trained for.
        precision: Of backbone and neck on a CPU, "float32" or "bf16"; None for the one saved with the model, where
            bf16 falls back to float32 on a processor without instructions for it.
    """

    flip: bool = False
    scales: Sequence[float] = (1.0,)
    tile: int = 1024
    overlap: int | None = None
    longest_side: int | None = None
    refine: Refinement | None = None
    iterations: int | None = None
    precision: Precision | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", tuple(self.scales))
        if not self.scales or not all(0 < scale <= 16 for scale in self.scales):
            raise InputError(f"scales are {self.scales}; give factors above 0 and up to 16, such as 0.75, 1, 1.25")
        if self.tile < 64 or not 0 <= self.tile_overlap <= self.tile // 2:
            raise InputError(
                f"tile is {self.tile} and overlap {self.tile_overlap} pixels; a tile has at least 64 and overlaps "
                "by at most half of itself"
            )
        if self.longest_side is not None and self.longest_side < 0:
            raise InputError(f"longest_side is {self.longest_side}; give a number of pixels, or 0 for any size")
        convert(self.precision, Precision | None, "precision")

    @property
    def tile_overlap(self) -> int:
        """How far tiles overlap, in pixels."""
        return min(256, self.tile // 4) if self.overlap is None else self.overlap


class Predictor:
    """A model ready to segment images.

    >>> from messagenet.models import MessageNet
    >>> predictor = Predictor(MessageNet("tiny", 3, hidden=8))
    >>> predictor.labels(np.zeros((30, 45, 3), np.uint8)).shape
    (30, 45)

    Args:
        model: The model, a saved model's folder, or a bundled model's name; it is put into evaluation mode. Default:
            the bundled model.
        options: Test-time augmentation, tiling, working size, refinement, iterations.
    """

    def __init__(
        self, model: SegmentationModel | str | Path | None = None, options: PredictOptions | None = None
    ) -> None:
        if not isinstance(model, SegmentationModel):
            model = SegmentationModel.from_pretrained(model)
        self.model = model.eval()
        self.options = options or PredictOptions()
        self._fused: SegmentationModel | None = None
        self._fused_state: tuple[torch.dtype, State] | None = None
        self._with_iterations()  # refuses those that the head cannot run

    def _with_iterations(self) -> SegmentationModel:
        """The model, with the iterations of the options."""
        head, iterations = self.model.head, self.options.iterations
        if iterations is None:
            return self.model
        if not isinstance(head, MessagePassing):
            raise InputError("iterations is for learned messages, and this model passes none; leave it out")
        return _replace(self.model, head=head.with_iterations(iterations))

    def labels(self, image: AnyImage) -> npt.NDArray[np.uint8]:
        """The most probable class of every pixel, uint8 (H, W).

        Args:
            image: RGB bytes (H, W, 3), a PIL image, or a file.
        """
        pixels = self.as_array(image)
        (nodes,) = self.node_logits([pixels])
        return self.pixel_labels(nodes, (pixels.shape[0], pixels.shape[1]), pixels)

    def marginals(self, image: AnyImage) -> Tensor:
        """P(y | x) at every pixel, (K, H, W), of an image as for `labels`."""
        return torch.cat([torch.softmax(strip, 0) for strip in self._strips(self.as_array(image))], 1)

    def _strips(self, image: ImageArray) -> Iterator[Tensor]:
        (nodes,) = self.node_logits([image])
        return self.pixel_logits(nodes, (image.shape[0], image.shape[1]), image)

    @torch.inference_mode()
    def node_logits(self, images: Sequence[ImageArray], forward: Forward | None = None) -> Tensor:
        """Logits at the nodes of RGB images of one size, (B, K, h, w), joined from all tiles and views.

        `forward`, if given, is called with the model's inputs (B, 3, H', W') in place of the model.
        """
        pixels = self.stack(images)
        views = [
            self._view(pixels, scale, flip, forward or self.forward)
            for scale in self._scales(max(pixels.shape[2:]))
            for flip in ((False, True) if self.options.flip else (False,))
        ]
        return _mean_of_views(views)

    @torch.inference_mode()
    def from_features(self, features: Features, size: tuple[int, int]) -> Tensor:
        """Logits at the nodes, (B, K, h, w), from known features of images of one size.

        `features` are those at the model's working size, `size` is (H, W) of the images themselves.
        """
        if self.options.flip or len(self.options.scales) > 1:
            raise InputError("features are those of one view of an image; predict with one scale and without flip")
        (scale,) = self._scales(max(size))
        reduced = scaled_size(size, scale)
        return self.on_image_grid(self._with_iterations().forward_head(features, size=reduced).float(), size, reduced)

    def pixel_logits(self, nodes: Tensor, size: tuple[int, int], image: ImageArray | None = None) -> Iterator[Tensor]:
        """Logits (K, rows, W) of successive strips of pixels, from an image's node logits (K, h, w).

        Refinement needs the image, RGB bytes (H, W, 3).
        """
        stride, refinement = self.model.output_stride, self.options.refine
        if refinement is None:
            return pixel_strips(nodes, size, stride)
        assert image is not None, "refinement looks at the image"
        return refinement.strips(image, nodes, stride)

    def pixel_labels(
        self, nodes: Tensor, size: tuple[int, int], image: ImageArray | None = None
    ) -> npt.NDArray[np.uint8]:
        """The most probable class of every pixel, (H, W), from arguments as for `pixel_logits`."""
        if nodes.device.type != "cpu" or self.options.refine is not None:
            return np.concatenate([most_probable(strip) for strip in self.pixel_logits(nodes, size, image)])
        from messagenet.prediction import kernels

        label_rows: Any = kernels.label_rows
        logits = at_least_float32(nodes.detach()).contiguous().numpy()
        down, across = (
            _nodes_before(pixels, count, self.model.output_stride, logits.dtype)
            for pixels, count in zip(size, logits.shape[1:], strict=True)
        )
        labels = np.empty(size, np.uint8)
        run = partial(label_rows, logits, down[0], down[1], across[0], across[1], labels)
        in_parts(run, size[0], torch.get_num_threads() if labels.size > 1 << 14 else 1)
        return labels

    def working_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """(H', W') to which an image of (H, W) pixels is reduced before prediction."""
        return scaled_size(size, self._reduction(max(size)))

    def _reduction(self, longest_side: int) -> float:
        asked = self.options.longest_side
        maximum = self.model.input.longest_side if asked is None else asked
        return min(1.0, maximum / longest_side) if maximum else 1.0

    def _scales(self, longest_side: int) -> list[float]:
        return [self._reduction(longest_side) * scale for scale in self.options.scales]

    def _view(self, pixels: Tensor, scale: float, flip: bool, forward: Forward) -> Tensor:
        """Logits of one view of images (B, 3, H, W), at the nodes of the images themselves."""
        size, options = map_size(pixels), self.options
        pixels = resize(pixels, scaled_size(size, scale))
        if flip:
            pixels = pixels.flip(3)

        def piece(pixels: Tensor) -> Tensor:
            return forward(self.as_input(pixels)).float()

        if max(pixels.shape[2:]) > options.tile:
            logits = join_tiles(pixels, piece, options.tile, options.tile_overlap, self.model.output_stride)
        else:
            logits = piece(pixels)
        return self.on_image_grid(logits, size, map_size(pixels), flip)

    def on_image_grid(
        self, logits: Tensor, size: tuple[int, int], viewed: tuple[int, int], flip: bool = False
    ) -> Tensor:
        """Logits (B, K, h, w) of a view of `viewed` pixels at the nodes of its image of `size` pixels."""
        if size == viewed and not flip:
            return logits
        stride = self.model.output_stride
        rows, columns = (node_centres(side, stride, logits.device) for side in size)
        columns = size[1] - columns if flip else columns
        rows, columns = rows * (viewed[0] / size[0]), columns * (viewed[1] / size[1])
        return bilinear_sample(logits, pixel_to_node(rows, stride), pixel_to_node(columns, stride))

    def as_array(self, image: AnyImage) -> ImageArray:
        """Bytes (H, W, C) of an image: an array, PIL image or file; RGB, or the channels that the model is for."""
        if isinstance(image, str | Path):
            image = read_image(image)
        elif isinstance(image, Image.Image):
            image = to_rgb(ImageOps.exif_transpose(image), "the image")
        channels = self.model.input.channels
        if (
            not isinstance(image, np.ndarray)
            or image.ndim != 3
            or image.shape[2] != channels
            or image.dtype != np.uint8
        ):
            kind = "RGB bytes" if channels == 3 else "bytes"
            given = f"{image.dtype} {tuple(image.shape)}" if hasattr(image, "shape") else type(image).__name__
            raise InputError(f"an image must be {kind} (height, width, {channels}), a PIL image or a file, not {given}")
        if image.size == 0:
            raise InputError(f"an image of {image.shape[1]}x{image.shape[0]} has no pixel; give at least one")
        return image

    def stack(self, images: Sequence[ImageArray]) -> Tensor:
        """Images of one size, (H, W, C) each, as (B, C, H, W)."""
        return torch.from_numpy(np.stack([self.as_array(image) for image in images])).permute(0, 3, 1, 2)

    def as_input(self, pixels: Tensor) -> Tensor:
        """Pixels in 0..255 as the model takes them: in 0..1, on its device and in its dtype."""
        parameter = next(self.model.parameters())
        return pixels.to(parameter.device).to(parameter.dtype) / 255

    def forward(self, images: Tensor) -> Tensor:
        """Logits at the nodes, (B, K, h, w), of images in 0..1, (B, 3, H, W), by the fused model where it applies."""
        logits: Tensor = self.fastest(images.device)(images)
        return logits

    def fastest(self, device: torch.device) -> SegmentationModel:
        """The model, with fused convolutions where they apply: on a CPU, in inference mode."""
        if device.type != "cpu" or torch.is_autocast_enabled("cpu") or torch.is_grad_enabled():
            return self._with_iterations()
        tensors = tensor_state(self.model.backbones) + tensor_state(self.model.neck or nn.Identity())
        if self._fused is None or (self.dtype, tensors) != self._fused_state:
            self._fused, self._fused_state = _fuse_convolutions(self.model, self.dtype), (self.dtype, tensors)
            kinds = {values.dtype for values in self._fused.buffers()}
            if self.options.precision == "bf16" and torch.bfloat16 not in kinds:
                raise InputError("precision is bf16, which no part of this model is computed in; leave it out")
        self._fused.head = self._with_iterations().head  # the model's may have been replaced
        return self._fused

    @property
    def dtype(self) -> torch.dtype:
        """Working type of backbone and neck on a CPU."""
        if self.options.precision == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            raise InputError("precision is bf16, which this processor cannot compute; use float32")
        asked = self.options.precision or (self.model.input.precision if has_bf16_instructions() else "float32")
        return torch.bfloat16 if asked == "bf16" else torch.float32

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fused": None, "_fused_state": None}


def _mean_of_views(views: Sequence[Tensor]) -> Tensor:
    """Logits of the mean of the views' marginals; a single view is returned as it is."""
    if len(views) == 1:
        return views[0]
    marginals = torch.stack([torch.softmax(logits, 1) for logits in views])
    return marginals.mean(0).clamp(min=1e-12).log()


def most_probable(values: Tensor) -> npt.NDArray[np.uint8]:
    """The class with the largest logit or probability at every pixel of (K, rows, W), uint8 (rows, W).

    >>> most_probable(torch.tensor([[[0.2, 0.7]], [[0.8, 0.3]]]))
    array([[1, 0]], dtype=uint8)
    """
    best = values[0]
    labels = torch.zeros_like(best, dtype=torch.uint8)
    for index, each in enumerate(values[1:], start=1):  # twice as fast as max over the first dimension
        better = (each > best).view(torch.uint8)
        labels = torch.maximum(labels, better * index)
        best = torch.maximum(best, each)
    found: npt.NDArray[np.uint8] = labels.cpu().numpy()
    return found


def _nodes_before(
    pixels: int, nodes: int, stride: float, dtype: npt.DTypeLike
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """The node before each pixel of an axis, and the weight of the one after it."""
    positions = (pixel_to_node(np.arange(pixels) + 0.5, stride)).clip(0, nodes - 1)
    before = np.floor(positions).astype(np.int64)
    return before, (positions - before).astype(dtype)


def resize(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (B, 3, H, W) in 0..255 at another size, bilinear, smoothed where they shrink, as bytes."""
    if size == map_size(pixels):
        return pixels
    shrinks = size[0] < pixels.shape[2]
    resized = functional.interpolate(pixels.float(), size, mode="bilinear", antialias=shrinks)
    return resized.round().clamp(0, 255).to(torch.uint8)


def scaled_size(size: tuple[int, int], scale: float) -> tuple[int, int]:
    """(H, W) times a factor, at least one pixel each."""
    height, width = (max(1, round(side * scale)) for side in size)
    return height, width


def _replace(model: SegmentationModel, **parts: nn.Module | None) -> SegmentationModel:
    """The model with other parts; everything else is shared with it."""
    other = copy.copy(model)
    other._modules = {**model._modules, **parts}
    return other


def _fuse_convolutions(model: SegmentationModel, dtype: torch.dtype) -> SegmentationModel:
    """The model with fused backbones and neck; levels of a backbone are read in float32."""
    dtype = torch.float32 if head_trait(model.head, "level_strides") else dtype
    backbones = nn.ModuleDict({name: fused(backbone, dtype) for name, backbone in model.backbones.items()})
    return _replace(model, backbones=backbones, neck=None if model.neck is None else fused(model.neck, dtype))
