"""A graph as a picture: which boxes there are, where they go, and the lines between them."""

from __future__ import annotations

from collections.abc import Mapping

from ..graph.model import Graph, Op, Tensor
from .layout import Layout, Point, layered
from .page_values import Box, Picture

COLUMN, LAYER = 190.0, 74.0
"""Distance of boxes in pixels."""

BOX_WIDTH, BOX_HEIGHT = 168.0, 42.0
MARGIN = 12.0
SHORT = 26
"""Characters of a name that fit into a box."""


def picture_of(graph: Graph, ids: Mapping[Op, str], names: Mapping[Tensor, str]) -> Picture:
    """Boxes for inputs, ops and outputs, in this order."""
    inputs, outputs = list(dict.fromkeys(graph.inputs)), list(dict.fromkeys(graph.outputs))
    makers: dict[Tensor, int] = {tensor: k for k, tensor in enumerate(inputs)}
    edges: list[tuple[int, int]] = []
    for vertex, op in enumerate(graph.ops, len(inputs)):
        sources = (makers[t] for t in op.inputs if t is not None and t in makers)
        edges += [(source, vertex) for source in dict.fromkeys(sources)]
        for tensor in op.outputs:
            makers.setdefault(tensor, vertex)
    first_output = len(inputs) + len(graph.ops)
    edges += [(makers[t], first_output + k) for k, t in enumerate(outputs) if t in makers]
    titles: list[tuple[str | None, str, str]] = [(None, "input", names[t]) for t in inputs]
    titles += [(ids[op], op.label, names[op.outputs[0]] if op.outputs else "") for op in graph.ops]
    titles += [(None, "output", names[t]) for t in outputs]
    return _drawn(graph.name, titles, edges, layered(len(titles), edges))


def _drawn(
    graph: str, titles: list[tuple[str | None, str, str]], edges: list[tuple[int, int]], layout: Layout
) -> Picture:
    def place(point: Point) -> Point:
        return MARGIN + BOX_WIDTH / 2 + COLUMN * point[0], MARGIN + BOX_HEIGHT / 2 + LAYER * point[1]

    places = [place(point) for point in layout.places]
    boxes = tuple(Box(op, title, short(name), *at) for (op, title, name), at in zip(titles, places, strict=True))
    lines = tuple(
        (_below(places[start]), *map(place, bends), _above(places[end]))
        for (start, end), bends in zip(edges, layout.bends, strict=True)
    )
    points = [*places, *(point for line in lines for point in line)]
    width = max((x for x, _ in points), default=0.0) + BOX_WIDTH / 2 + MARGIN
    height = max((y for _, y in points), default=0.0) + BOX_HEIGHT / 2 + MARGIN
    return Picture(graph, width, height, boxes, lines)


def _below(place: Point) -> Point:
    return place[0], place[1] + BOX_HEIGHT / 2


def _above(place: Point) -> Point:
    return place[0], place[1] - BOX_HEIGHT / 2


def short(name: str) -> str:
    """The end of a name: paths tell ops apart there. Of several that were fused, the first."""
    own = name.split(";")[0]
    return own if len(own) <= SHORT else f"…{own[1 - SHORT :]}"
