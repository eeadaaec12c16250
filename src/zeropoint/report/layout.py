"""Where the ops of a graph go in a picture: layers from top to bottom, by igraph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import MissingExtra

Point = tuple[float, float]

REPORT_EXTRA = "reports need igraph, Jinja2 and Plotly; install them with: pip install 'zeropoint[report]'"

ROUNDS = 20
"""Of igraph's search for fewer crossings. More take time on large graphs and change little on networks."""


@dataclass(frozen=True)
class Layout:
    """A place for each vertex, in units of columns and layers, and the bends of each edge between its ends."""

    places: tuple[Point, ...]
    bends: tuple[tuple[Point, ...], ...]


def layered(vertices: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """Layers so that every edge points downwards. Edges go from a smaller number to a larger one, as ops do.

    An edge that passes layers gets a vertex in each of them, so that room is left for it; those are its bends.
    (igraph 1.0 does the same inside, but its Python interface does not tell where.)
    """
    try:
        import igraph
    except ImportError:
        raise MissingExtra(REPORT_EXTRA) from None
    if not vertices:
        return Layout((), ())
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
    return Layout(tuple(places[:vertices]), tuple(tuple(places[k] for k in between) for between in passing))


def _layers(vertices: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The longest way from a source. Sources themselves go right above their first reader: second inputs, and
    conversions of constants, would else all crowd the top."""
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
