"""Models with dynamic input sizes: trained at the size of the samples, deployed for any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidSample
from ..graph.edit import copy_model
from ..graph.model import Model
from ..runtime import Session
from ..sources.models import ModelSource, load
from ..sources.ports import Row, entry
from ..sources.samples import Notes, rows


def fix_shapes(model: ModelSource, sample: Any) -> Model:
    """Return a copy of `model` whose tensors have the shapes that `sample` gives them, to be trained at that size.

    Dynamic dimensions stay dynamic in the file: the quantized model takes other sizes, too.
    """
    source = load(model)
    return with_shapes_of(source, next(row for _, row in rows([sample], entry(source), Notes())))


def leaves_sizes_open(model: Model) -> bool:
    return any(-1 in port.shape[1:] for port in entry(model).ports)


def fixed_for(model: Model, given: Sequence[Row]) -> Model:
    """Return `model` at the size of the rows, which have to agree; itself if only the batch is dynamic."""
    if not leaves_sizes_open(model):
        return model
    ports = entry(model).ports
    for number, row in enumerate(given):
        for port, first, values in zip(ports, given[0], row, strict=True):
            if values.shape != first.shape:
                raise InvalidSample(
                    f"sample {number}, input {port}: the shape {list(values.shape)} is another than the first sample's "
                    f"{list(first.shape)}, and training takes samples of one size; crop or resize them"
                )
    return with_shapes_of(model, given[0])


def with_shapes_of(model: Model, row: Row) -> Model:
    copy = copy_model(model)
    session = Session(copy, kernels="optimized")  # a delegate does not update the shapes of inner tensors
    session.invoke(row)
    for tensor, shape in zip(copy.main.tensors, session.shapes(), strict=False):  # kernels add their own tensors
        if not tensor.is_constant:
            tensor.shape = shape
    return copy
