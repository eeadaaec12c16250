"""Strided convolutions of few channels on pixels that are as wide as the stride: space to depth along the width.

In memory, s neighbouring pixels of c channels are one pixel of s*c channels. A convolution with stride s along the
width computes the same on these, with stride 1 and a kernel of about an s-th of the width. Weights that belong to no
tap of the original are zero:

    output[y, x, o] = sum over i, j, c of weights[o, i, j, c] * image[t*y + i, s*x + j - padding, c]
                    = sum over i, g, k of folded[o, i, g, k] * pixels[t*y + i, x + g - groups, k]

Integer kernels multiply 4 or 8 channels of a tap at once, whether or not the image has so many. A picture has 3, so
most of the work of a network's first layer is on zeros: a 3x3 kernel with stride 2 has 9 taps for 27 products, folded
it has 6. The integers that it computes are the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array, DType
from ..graph.model import Graph, Op, Tensor
from ..graph.query import Use, Uses
from ..ops.layout import VALID, Window, convolution_windows
from ..recipe import Recipe
from ..tflite.schema import default_options
from .new_ops import NewOps

AT_ONCE = 8
"""Channels of one tap that integer kernels multiply at once: fewer are filled up with zeros."""


@dataclass(frozen=True)
class Folded:
    """A convolution along the width, on groups of `stride` pixels: `before` and `after` are groups of padding."""

    wide: Window
    channels: int

    @property
    def stride(self) -> int:
        return self.wide.stride

    @property
    def before(self) -> int:
        return -(-self.wide.before // self.stride)

    @property
    def taps(self) -> int:
        return self.before + (self.wide.taps - 1 - self.wide.before) // self.stride + 1

    @property
    def groups(self) -> int:
        return self.wide.length // self.stride

    @property
    def after(self) -> int:
        return self.wide.outputs + self.taps - 1 - self.groups - self.before

    @property
    def is_centered(self) -> bool:
        """Whether SAME pads the groups as they need it."""
        return self.before == (self.before + self.after) // 2

    @property
    def pays(self) -> bool:
        """Whether groups are whole, and kernels take fewer steps."""
        is_whole = self.wide.length % self.stride == 0 and self.wide.dilation == 1 and self.after >= 0
        steps = self.taps * -(-self.stride * self.channels // AT_ONCE)
        return self.stride > 1 and is_whole and steps < self.wide.taps * -(-self.channels // AT_ONCE)

    def kernel(self, weights: Array) -> Array:
        """Return the weights [outputs, height, groups, channels of a group]."""
        outputs, height, taps, channels = weights.shape
        spread = np.zeros((outputs, height, self.taps * self.stride, channels), np.float32)
        start = self.before * self.stride - self.wide.before
        spread[:, :, start : start + taps] = weights
        return spread.reshape(outputs, height, self.taps, self.stride * channels)


def fold_pixels(graph: Graph, recipe: Recipe, fixed: Collection[Tensor | None] = ()) -> NewOps:
    """Edit `graph` in place where `recipe` asks for int8: float kernels waste nothing on few channels.

    Ops that a rule names, and weights that are `fixed`, stay as they are.
    """
    new, uses = NewOps(graph), Uses(graph)
    for op in [op for op in graph.ops if op.kind == "CONV_2D"]:
        is_asked = recipe.leaves_free(op, DType.INT8) and recipe.scheme(op).weights is DType.INT8
        if is_asked and _is_constant(op) and op.inputs[1] not in fixed:
            pad = _padding_before(op, uses)
            is_free = pad is not None and recipe.leaves_free(pad, DType.INT8) and pad.outputs[0] not in fixed
            if _fold(op, pad if is_free else None, new):
                uses = Uses(graph)
    return new


def _is_constant(op: Op) -> bool:
    """Whether weights, bias and all sizes except the batch are known, and every output sums over all channels."""
    image, weights, *biases = op.inputs
    if image is None or weights is None or any(t and t.data is None for t in (weights, *biases)):
        return False
    is_open = any(-1 in t.dynamic_shape[1:] for t in (image, op.outputs[0]))
    is_image = all(len(t.shape) == 4 for t in (image, weights, op.outputs[0]))
    return not is_open and is_image and weights.shape[3] == image.shape[3]


def _padding_before(op: Op, uses: Uses) -> Op | None:
    """Return the PAD whose only reader is `op`, if it adds zeros around the image."""
    pad = uses.producer(Use(op, 0).tensor) if op.option("padding") == VALID else None
    if pad is None or pad.kind != "PAD":
        return None
    is_read_once = len(uses.readers(pad.outputs[0])) == 1 and not uses.is_output(pad.outputs[0])
    sizes = None if pad.inputs[1] is None else pad.inputs[1].data
    return pad if is_read_once and sizes is not None and not sizes[[0, 3]].any() else None


def _fold(op: Op, pad: Op | None, new: NewOps) -> bool:
    """Replace a convolution, and the padding before it, if that pays; return whether it does."""
    high, wide = convolution_windows(op)
    image, weights = Use(pad or op, 0).tensor, Use(op, 1).tensor
    top, bottom = high.before, high.after
    if pad is not None:
        top, bottom = map(int, Use(pad, 1).data[1])
        left, right = map(int, Use(pad, 1).data[2])
        wide = Window(wide.taps, wide.stride, wide.dilation, image.shape[2], wide.outputs, left, right)
    folded = Folded(wide, image.shape[3])
    if op.options is None or not folded.pays:
        return False
    _, height, _, channels = image.shape
    size = (height, folded.groups, folded.stride * channels)
    source = _made(new, image, "pixels", size)
    shape = new.integers(f"{op.name}/pixels/shape", (-1, *size))
    new.insert(op, "RESHAPE", [image, shape], source, default_options("ReshapeOptions", newShape=(-1, *size)))
    if pad is not None or not folded.is_centered:
        sides = ((0, 0), (top, bottom), (folded.before, folded.after), (0, 0))
        size = (height + top + bottom, folded.before + folded.groups + folded.after, size[2])
        padded = _made(new, image, "padded", size)
        new.insert(op, "PAD", [source, new.integers(f"{op.name}/padding", sides)], padded)
        source, op.options = padded, op.options.replace(padding=VALID)
    kernel = new.constant_from(weights, f"{weights.name}/folded", folded.kernel(Use(op, 1).data))
    op.inputs[:2] = [source, kernel]
    op.options = op.options.replace(strideW=1)
    if pad is not None:
        new.graph.ops.remove(pad)
    return True


def _made(new: NewOps, image: Tensor, what: str, size: tuple[int, ...]) -> Tensor:
    """Return a tensor with the values of the image, and its batch."""
    made = new.tensor(image, what, (image.shape[0], *size), image)
    if image.is_dynamic:
        made.shape_signature = (-1, *size)
    return made
