"""A graph as a picture: layers from top to bottom, placed by igraph, with boxes for ops and lines between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from ..errors import MissingExtra
from ..graph.model import Graph, Op, Tensor

Point = tuple[float, float]

ROUNDS = 20
"""Rounds of igraph's search for fewer crossings. More take time on large graphs and change little on networks."""

COLUMN, LAYER = 190.0, 74.0
"""Distance of boxes in pixels."""

BOX_WIDTH, BOX_HEIGHT = 168.0, 42.0
MARGIN = 12.0
SHORT = 26
"""Characters of a name that fit into a box."""


@dataclass(frozen=True)
class Box:
    """An op or an end of the graph in the picture, by its centre. `op` is None for ends."""

    op: str | None
    title: str
    subtitle: str
    x: float
    y: float


@dataclass(frozen=True)
class Picture:
    """A graph with places for its ops. `lines` are the points that each edge passes."""

    graph: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[tuple[Point, ...], ...]


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

    places, bends = layered(len(titles), edges)
    boxes = tuple(
        Box(op, title, short(name), *_pixels(at)) for (op, title, name), at in zip(titles, places, strict=True)
    )
    lines = tuple(
        (
            (boxes[start].x, boxes[start].y + BOX_HEIGHT / 2),
            *map(_pixels, passed),
            (boxes[end].x, boxes[end].y - BOX_HEIGHT / 2),
        )
        for (start, end), passed in zip(edges, bends, strict=True)
    )
    right, bottom = (max(along) for along in zip(*chain(places, *bends), strict=True))
    width, height = _pixels((right, bottom))
    return Picture(graph.name, width + BOX_WIDTH / 2 + MARGIN, height + BOX_HEIGHT / 2 + MARGIN, boxes, lines)


def _pixels(place: Point) -> Point:
    return MARGIN + BOX_WIDTH / 2 + COLUMN * place[0], MARGIN + BOX_HEIGHT / 2 + LAYER * place[1]


def short(name: str) -> str:
    """The end of a name: paths tell ops apart there. Of several that were fused, the first."""
    own = name.split(";")[0]
    return own if len(own) <= SHORT else f"…{own[1 - SHORT :]}"


def layered(vertices: int, edges: Sequence[tuple[int, int]]) -> tuple[list[Point], list[list[Point]]]:
    """A place for each vertex, in units of columns and layers, and the bends of each edge between its ends.

    Every edge points downwards. Edges go from a smaller number to a larger one, as ops do. An edge that passes layers
    gets a vertex in each of them, so that room is left for it; those are its bends. (igraph 1.0 does the same
    internally, but its Python interface does not say where.)
    """
    import igraph

    layers = _layers(vertices, edges)
    parts: list[tuple[int, int]] = []
    passing: list[range] = []
    for start, end in edges:
        between = range(len(layers), len(layers) + layers[end] - layers[start] - 1)
        layers += range(layers[start] + 1, layers[end])
        parts += pairwise((start, *between, end))
        passing.append(between)
    graph = igraph.Graph(n=len(layers), edges=parts, directed=True)
    coordinates = graph.layout_sugiyama(layers=layers, maxiter=ROUNDS).coords
    left = min(x for x, _ in coordinates)
    places = [(float(x - left), float(layer)) for (x, _), layer in zip(coordinates, layers, strict=False)]
    return places[:vertices], [[places[k] for k in between] for between in passing]


def _layers(vertices: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The longest way from a source. Sources themselves go right above their first reader; otherwise second inputs
    and conversions of constants would all crowd the top."""
    layers = [0] * vertices
    for start, end in sorted(edges):
        layers[end] = max(layers[end], layers[start] + 1)
    first_readers: dict[int, int] = {}
    for start, end in edges:
        first_readers[start] = min(layers[end], first_readers.get(start, layers[end]))
    sources = first_readers.keys() - {end for _, end in edges}
    return [first_readers[v] - 1 if v in sources else layer for v, layer in enumerate(layers)]
