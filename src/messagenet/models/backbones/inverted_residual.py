"""The block of MobileNetV2 and EfficientNet: widen, filter each channel in space, narrow.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", arXiv 1801.04381.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ConvolutionNorm(nn.Module):
    """A convolution and a batch norm; pads as TensorFlow's "SAME" does for sizes that the stride divides.

    A norm that uses its stored statistics is a fixed scale and shift of every channel: they are multiplied into
    the kernel, which spares the passes over the map that the norm and its gradient would take.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        before = (kernel - stride) // 2
        after = kernel - stride - before
        self.odd_pixel = (0, after - before, 0, after - before)
        self.dilation = dilation
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride, before, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, inputs, H, W) to (B, outputs, H/stride, W/stride)."""
        if any(self.odd_pixel):
            x = F.pad(x, self.odd_pixel)
        norm = self.norm
        if norm.training or norm.running_var is None:
            normalised: Tensor = norm(self._convolved(x, self.convolution.weight, None))
            return normalised
        return self._convolved(x, *self.folded())

    def folded(self) -> tuple[Tensor, Tensor]:
        """The kernel and bias of the convolution that has the norm's stored statistics in it."""
        norm = self.norm
        assert norm.running_var is not None, "the norm keeps no statistics"
        assert norm.running_mean is not None, "the norm keeps no statistics"
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        return self.convolution.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale

    def _convolved(self, x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        plain = self.convolution
        if plain.groups > 1 and x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            # A kernel for each channel is slower in bfloat16 on a processor; matrix products are faster.
            with torch.autocast("cpu", enabled=False):
                return self._convolved(x.float(), kernel, bias).to(x.dtype)
        if plain.kernel_size == (1, 1) and not torch.is_grad_enabled():
            # With channels last it is one matrix product, as it lies; in training oneDNN's gradients are faster.
            return F.linear(x.permute(0, 2, 3, 1), kernel[:, :, 0, 0], bias).permute(0, 3, 1, 2)
        if self.dilation == 1:
            return F.conv2d(x, kernel, bias, plain.stride, plain.padding, groups=plain.groups)
        return dilated(x, kernel, bias, plain.kernel_size[0] // 2, plain.groups, self.dilation)


def dilated(x: Tensor, kernel: Tensor, bias: Tensor | None, padding: int, groups: int, d: int) -> Tensor:
    """Applies a convolution with its kernel dilated by `d`, as d² plain ones.

    A dilated kernel never mixes pixels of different phase (row and column modulo d), so each phase can be an
    image of its own in a larger batch. Same values; on a CPU the gradient takes a quarter of the time.
    """
    batch, channels, height, width = x.shape
    x = F.pad(x, (0, -width % d, 0, -height % d)).permute(0, 2, 3, 1)  # (B, h·d, w·d, C)
    h, w = x.shape[1] // d, x.shape[2] // d
    x = x.reshape(batch, h, d, w, d, channels).permute(2, 4, 0, 1, 3, 5)  # (d, d, B, h, w, C)
    x = x.reshape(-1, h, w, channels).permute(0, 3, 1, 2)  # (d·d·B, C, h, w)
    x = F.conv2d(x, kernel, bias, padding=padding, groups=groups)
    x = x.permute(0, 2, 3, 1).reshape(d, d, batch, h, w, -1).permute(2, 3, 0, 4, 1, 5)  # (B, h, d, w, d, C)
    x = x.reshape(batch, h * d, w * d, -1).permute(0, 3, 1, 2)  # (B, C, h·d, w·d)
    return x[..., :height, :width]


class InvertedResidual(nn.Module):
    """Widen, filter each channel in space, narrow; add the input where the shape has stayed the same.

    Attributes:
        left_out: How likely a block with a residual is to be left out for an image of a training batch; when it
            is not, what it adds is divided by the rest of that chance, so that its mean stays the same (stochastic
            depth, Huang et al., arXiv 1603.09382).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        expansion: int = 1,
        stride: int = 1,
        dilation: int = 1,
        residual: bool = False,
    ) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.residual = residual
        self.left_out = 0.0
        self.expand = ConvolutionNorm(inputs, hidden) if expansion > 1 else None
        self.depthwise = ConvolutionNorm(hidden, hidden, kernel, stride, dilation, groups=hidden)
        self.project = ConvolutionNorm(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, inputs, H, W) to (B, outputs, H/stride, W/stride)."""
        hidden = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        hidden = F.relu6(self.depthwise(hidden), inplace=True)
        narrow: Tensor = self.project(hidden)
        if not self.residual:
            return narrow
        if self.training and self.left_out:
            present = torch.rand(len(x), 1, 1, 1, device=x.device) >= self.left_out
            narrow = narrow * (present.to(narrow.dtype) / (1 - self.left_out))
        return x + narrow
