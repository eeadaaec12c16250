"""A graph as a picture: layers from top to bottom, placed by igraph, with boxes for ops and lines between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import MissingExtra
from ..graph.model import Graph, Op, Tensor
from .page_values import Box, Picture

Point = tuple[float, float]

ROUNDS = 20
"""Rounds of igraph's search for fewer crossings. More take time on large graphs and change little on networks."""

COLUMN, LAYER = 190.0, 74.0
"""Distance of boxes in pixels."""

BOX_WIDTH, BOX_HEIGHT = 168.0, 42.0
MARGIN = 12.0
SHORT = 26
"""Characters of a name that fit into a box."""


def require_report() -> None:
    """Raise if reports cannot be made here: to be called before any work is done."""
    try:
        import igraph  # noqa: F401
        import jinja2  # noqa: F401
        import plotly.offline  # noqa: F401
    except ImportError:
        raise MissingExtra(
            "reports need igraph, Jinja2 and Plotly; install them with: pip install 'zeropoint[report]'"
        ) from None


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
    graph: str, titles: list[tuple[str | None, str, str]], edges: list[tuple[int, int]], placement: Placement
) -> Picture:
    def place(point: Point) -> Point:
        return MARGIN + BOX_WIDTH / 2 + COLUMN * point[0], MARGIN + BOX_HEIGHT / 2 + LAYER * point[1]

    places = [place(point) for point in placement.places]
    boxes = tuple(Box(op, title, short(name), *at) for (op, title, name), at in zip(titles, places, strict=True))
    lines = tuple(
        (_moved(places[start], BOX_HEIGHT / 2), *map(place, bends), _moved(places[end], -BOX_HEIGHT / 2))
        for (start, end), bends in zip(edges, placement.bends, strict=True)
    )
    points = [*places, *(point for line in lines for point in line)]
    width = max((x for x, _ in points), default=0.0) + BOX_WIDTH / 2 + MARGIN
    height = max((y for _, y in points), default=0.0) + BOX_HEIGHT / 2 + MARGIN
    return Picture(graph, width, height, boxes, lines)


def _moved(place: Point, down: float) -> Point:
    return place[0], place[1] + down


def short(name: str) -> str:
    """The end of a name: paths tell ops apart there. Of several that were fused, the first."""
    own = name.split(";")[0]
    return own if len(own) <= SHORT else f"…{own[1 - SHORT :]}"


@dataclass(frozen=True)
class Placement:
    """A place for each vertex, in units of columns and layers, and the bends of each edge between its ends."""

    places: tuple[Point, ...]
    bends: tuple[tuple[Point, ...], ...]


def layered(vertices: int, edges: Sequence[tuple[int, int]]) -> Placement:
    """Layers so that every edge points downwards. Edges go from a smaller number to a larger one, as ops do.

    An edge that passes layers gets a vertex in each of them, so that room is left for it; those are its bends.
    (igraph 1.0 does the same internally, but its Python interface does not say where.)
    """
    require_report()
    import igraph

    if not vertices:
        return Placement((), ())
    layers = _layers(vertices, edges)
    parts: list[tuple[int, int]] = []
    passing: list[list[int]] = []
    for start, end in edges:
        between = list(range(len(layers), len(layers) + layers[end] - layers[start] - 1))
        layers += range(layers[start] + 1, layers[end])
        way = [start, *between, end]
        parts += pairwise(way)
        passing.append(between)
    graph = igraph.Graph(n=len(layers), edges=parts, directed=True)
    coordinates = graph.layout_sugiyama(layers=layers, maxiter=ROUNDS).coords
    left = min(x for x, _ in coordinates)
    places = [(float(x - left), float(layer)) for (x, _), layer in zip(coordinates, layers, strict=False)]
    return Placement(tuple(places[:vertices]), tuple(tuple(places[k] for k in between) for between in passing))


def _layers(vertices: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The longest way from a source. Sources themselves go right above their first reader; otherwise second inputs
    and conversions of constants would all crowd the top."""
    readers: list[list[int]] = [[] for _ in range(vertices)]
    has_source = [False] * vertices
    for start, end in edges:
        readers[start].append(end)
        has_source[end] = True
    layers = [0] * vertices
    for vertex in range(vertices):
        for reader in readers[vertex]:
            layers[reader] = max(layers[reader], layers[vertex] + 1)
    for vertex in range(vertices):
        if not has_source[vertex] and readers[vertex]:
            layers[vertex] = min(layers[reader] for reader in readers[vertex]) - 1
    return layers
