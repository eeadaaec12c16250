"""A graph as a picture: layers from top to bottom, laid out by igraph, with boxes for ops and lines between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise

from ..display import counted
from ..errors import MissingExtra
from ..graph.model import Graph, Op, Tensor

Point = tuple[float, float]

ROUNDS = 20
"""Iterations of igraph's crossing reduction. More take time on large graphs and change little."""

COLUMN, LAYER = 190.0, 74.0
"""Distance between boxes in pixels."""

BOX_WIDTH, BOX_HEIGHT = 168.0, 42.0
MARGIN = 12.0
MOST_OPS, MOST_GROUPS, DEEPEST = 80, 40, 8
"""Maximum ops in one picture; for larger graphs, the maximum groups of ops, and the maximum depth of name scopes."""

SHORT = 26
"""Characters of a name that fit in a box."""


@dataclass(frozen=True)
class Box:
    """An op, a group of ops or an end of the graph in the picture, by its centre. `op` is None for groups and ends,
    `ops` are those of a group, and `opens` is the index of the picture that shows them."""

    op: str | None
    title: str
    subtitle: str
    x: float
    y: float
    ops: tuple[str, ...] = ()
    opens: int | None = None


@dataclass(frozen=True)
class Picture:
    """A graph, or a part of one, with positions for its ops. `lines` are the points of each edge; `parent` is the index
    of the picture that shows this part as a box."""

    graph: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[tuple[Point, ...], ...]
    parent: int | None = None


def require_report() -> None:
    """Raise if the dependencies of reports are missing; to be called before any work is done."""
    try:
        import igraph  # noqa: F401
        import jinja2  # noqa: F401
    except ImportError:
        raise MissingExtra(
            "reports need igraph and Jinja2; install them with: pip install 'zeropoint[report]'"
        ) from None


def pictures_of(graph: Graph, ids: Mapping[Op, str], names: Mapping[Tensor, str], first: int) -> list[Picture]:
    """Return a graph as one picture, or a large graph as a picture of its groups and one picture of each group. `first`
    is the index of the first of them on the page."""
    if len(graph.ops) <= MOST_OPS:
        return [picture_of(graph, ids, names)]
    groups = groups_of(graph.ops)
    of_ops = {op: k for k, group in enumerate(groups) for op in group.ops}
    units = [
        Unit(None, group.name, counted(len(group.ops), "op"), group.ops, first + 1 + k)
        for k, group in enumerate(groups)
    ]
    whole = _picture(graph.name, units, of_ops, (graph.inputs, graph.outputs), names, ids)
    return [whole, *(_part(graph, group, ids, names, first) for group in groups)]


def picture_of(graph: Graph, ids: Mapping[Op, str], names: Mapping[Tensor, str]) -> Picture:
    """Return a picture with boxes for inputs, ops and outputs, in this order."""
    return _picture(graph.name, *_single(graph.ops, ids, names), (graph.inputs, graph.outputs), names, ids)


def _part(graph: Graph, group: NodeGroup, ids: Mapping[Op, str], names: Mapping[Tensor, str], parent: int) -> Picture:
    """Return a picture of the ops of a group, with the tensors that enter and leave it as its ends."""
    own = set(group.ops)
    made = {t for op in group.ops for t in op.outputs}
    read_outside = {t for op in graph.ops if op not in own for t in op.inputs} | set(graph.outputs)
    inputs = [t for op in group.ops for t in op.inputs if t is not None and t not in made and not t.is_constant]
    outputs = [t for op in group.ops for t in op.outputs if t in read_outside]
    picture = _picture(group.name, *_single(group.ops, ids, names), (inputs, outputs), names, ids)
    return replace(picture, parent=parent)


def _single(ops: Sequence[Op], ids: Mapping[Op, str], names: Mapping[Tensor, str]) -> tuple[list[Unit], dict[Op, int]]:
    units = [Unit(ids[op], op.label, short(names[op.outputs[0]] if op.outputs else ""), (op,)) for op in ops]
    return units, {op: k for k, op in enumerate(ops)}


def _edges(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], unit_of: Mapping[Op, int], units: int
) -> dict[tuple[int, int], None]:
    """Return edges between boxes, by index."""
    makers: dict[Tensor, int] = {tensor: k for k, tensor in enumerate(inputs)}
    edges: dict[tuple[int, int], None] = {}
    for op, unit in unit_of.items():
        vertex = len(inputs) + unit
        sources = (makers[t] for t in op.inputs if t is not None and t in makers)
        edges |= {(source, vertex): None for source in sources if source != vertex}
        for tensor in op.outputs:
            makers.setdefault(tensor, vertex)
    first_output = len(inputs) + units
    return edges | {(makers[t], first_output + k): None for k, t in enumerate(outputs) if t in makers}


def _picture(
    title: str,
    units: Sequence[Unit],
    unit_of: Mapping[Op, int],
    ends: tuple[Sequence[Tensor], Sequence[Tensor]],
    names: Mapping[Tensor, str],
    ids: Mapping[Op, str],
) -> Picture:
    """Return a picture with boxes for inputs, units and outputs, in this order."""
    inputs, outputs = (list(dict.fromkeys(side)) for side in ends)
    edges = _edges(inputs, outputs, unit_of, len(units))
    every = [Unit(None, "input", short(names[t])) for t in inputs]
    every += [*units, *(Unit(None, "output", short(names[t])) for t in outputs)]
    places, bends = layered(len(every), [*edges])
    boxes = tuple(
        Box(u.op, u.title, u.subtitle, *_pixels(at), () if u.op else tuple(ids[op] for op in u.ops), u.opens)
        for u, at in zip(every, places, strict=True)
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
    return Picture(title, width + BOX_WIDTH / 2 + MARGIN, height + BOX_HEIGHT / 2 + MARGIN, boxes, lines)


@dataclass(frozen=True)
class Unit:
    """What becomes a box: an op with its id, or several ops."""

    op: str | None
    title: str
    subtitle: str
    ops: tuple[Op, ...] = ()
    opens: int | None = None


@dataclass(frozen=True)
class NodeGroup:
    """Consecutive ops, under the name scope that they share."""

    name: str
    ops: tuple[Op, ...]


def groups_of(ops: Sequence[Op]) -> list[NodeGroup]:
    """Group consecutive ops by name scope, at the deepest level that gives few enough groups; otherwise in equal parts.

    Ops of a group are consecutive, so that no group is both before and after another.
    """
    for depth in range(DEEPEST, 0, -1):
        runs = [(scope, tuple(run)) for scope, run in groupby(ops, key=lambda op: _scope(op, depth))]
        if 1 < len(runs) <= MOST_GROUPS:
            return [NodeGroup(short(scope) or "(no scope)", run) for scope, run in runs]
    size = -(-len(ops) // MOST_GROUPS)
    parts = [tuple(ops[k : k + size]) for k in range(0, len(ops), size)]
    return [NodeGroup(f"ops {k * size} to {k * size + len(part) - 1}", part) for k, part in enumerate(parts)]


def _scope(op: Op, depth: int) -> str:
    """Return the leading path components of the op's name; of several fused names, the first."""
    return "/".join(op.name.split(";")[0].split("/")[:-1][:depth])


def _pixels(place: Point) -> Point:
    return MARGIN + BOX_WIDTH / 2 + COLUMN * place[0], MARGIN + BOX_HEIGHT / 2 + LAYER * place[1]


def short(name: str) -> str:
    """Return as much of the end of a name as fits in a box: paths differ at the end."""
    return name if len(name) <= SHORT else f"…{name[1 - SHORT :]}"


def layered(vertices: int, edges: Sequence[tuple[int, int]]) -> tuple[list[Point], list[list[Point]]]:
    """Return a position for each vertex, in columns and layers, and the bends of each edge.

    Every edge points downwards: edges go from a smaller number to a larger one, as ops do. An edge that spans several
    layers gets a dummy vertex in each of them, which reserves space; those are its bends. (igraph 1.0 does the same
    internally, but its Python interface does not return the positions.)
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
    """Return the longest path from a source for each vertex. Sources are placed right above their first reader;
    otherwise second inputs and conversions of constants would all crowd the top."""
    layers = [0] * vertices
    for start, end in sorted(edges):
        layers[end] = max(layers[end], layers[start] + 1)
    first_readers: dict[int, int] = {}
    for start, end in edges:
        first_readers[start] = min(layers[end], first_readers.get(start, layers[end]))
    sources = first_readers.keys() - {end for _, end in edges}
    return [first_readers[v] - 1 if v in sources else layer for v, layer in enumerate(layers)]
