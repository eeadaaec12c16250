"""Matches tensors of a quantized model to their counterparts in the float model: by name, or else by position.

Quantizers keep names, append suffixes, or join those of fused ops with semicolons. Where names do not help, ops of the
same kind and shape in the same order are taken to be the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise

from ..errors import InvalidModel
from ..graph.model import Graph, Model, Op, Tensor
from ..graph.query import Uses
from ..ops import CONVERSIONS
from ..sources.ports import Entry, entry
from ..tflite.provenance import provenance

SUFFIX = re.compile(
    r"([/_.](?:u?int(?:8|16|32)|float(?:16|32)|quantized|dequantized?|requantized|quant|dequant)|#\d+|_\d+)$",
    re.IGNORECASE,
)
"""Suffixes that quantizers append to the name of a tensor that holds the same values in another form."""


@dataclass(frozen=True)
class Alignment:
    """The counterpart in the float graph of each activation of the quantized graph."""

    quantized: Graph
    float: Graph
    partner: Mapping[Tensor, Tensor]

    def unaligned(self) -> Iterator[Op]:
        """Yield the ops of the float graph that have no output with a counterpart."""
        found = set(self.partner.values())
        return (op for op in self.float.ops if op.kind not in CONVERSIONS and not found.intersection(op.outputs))


def align_models(model: Model, quantized: Model, signature: str | None = None) -> Alignment:
    """Match the tensors of a float model and a quantized model."""
    ends = entry(model, signature), entry(quantized, signature if quantized.signatures else None)
    wanted, made = (end.graph for end in ends)
    partner = dict(_inputs(*ends)) | dict(_outputs(wanted, made))
    taken, known = set(partner.values()), provenance(quantized)
    unlike = set() if known is None else {t for t in made.tensors if not known.has_counterpart(t.name)}
    for tensor, original in _by_name(wanted, made):
        if tensor not in partner and tensor not in unlike and original not in taken:
            partner[tensor] = original
            taken.add(original)
    partner |= {t: original for t, original in _by_place(wanted, made, partner) if t not in unlike}
    partner |= dict(_through_conversions(made, partner))
    return Alignment(made, wanted, partner)


def _inputs(wanted: Entry, made: Entry) -> Iterator[tuple[Tensor, Tensor]]:
    """Match inputs by the names that callers use, if both models have the same; otherwise in order."""
    _require_same_number("inputs", wanted.ports, made.ports)
    by_name = {port.name: port.tensor for port in wanted.ports}
    named = set(by_name) == {port.name for port in made.ports}
    for port, other in zip(made.ports, wanted.ports, strict=True):
        yield port.tensor, by_name[port.name] if named else other.tensor


def _require_same_number(what: str, wanted: Collection[object], made: Collection[object]) -> None:
    if len(wanted) != len(made):
        counts = f"the float model has {len(wanted)} {what} and the quantized one {len(made)}"
        raise InvalidModel(f"{counts}; give two versions of one model")


def input_order(wanted: Entry, made: Entry) -> list[int]:
    """Return, for each input of another version, the position of the same input in the float model; additional inputs
    are ignored."""
    originals = dict(_inputs(wanted, replace(made, ports=made.ports[: len(wanted.ports)])))
    return [wanted.graph.inputs.index(original) for original in originals.values()]


def _outputs(wanted: Graph, made: Graph) -> Iterator[tuple[Tensor, Tensor]]:
    _require_same_number("outputs", wanted.outputs, made.outputs)
    uses, own_uses = Uses(wanted), Uses(made)
    for tensor, original in zip(made.outputs, wanted.outputs, strict=True):
        # What an op computes is what counts, not a conversion after it for callers.
        yield source(tensor, own_uses), source(original, uses)


def source(tensor: Tensor, uses: Uses, through: Collection[str] = CONVERSIONS) -> Tensor:
    """Return the tensor from which a tensor is converted."""
    while (op := uses.producer(tensor)) is not None and op.kind in through and op.inputs[0] is not None:
        tensor = op.inputs[0]
    return tensor


def computed(graph: Graph) -> list[Tensor]:
    """Return the tensors that ops other than conversions compute, in order."""
    return [t for op in graph.ops if op.kind not in CONVERSIONS for t in op.outputs]


def _by_name(wanted: Graph, made: Graph) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs whose names match, most certain first: equal, equal except for a suffix, with a part in common."""
    aliases = _aliases(made)
    originals = [t for t in computed(wanted) if t.name]
    for spelling in (_whole, _stripped, _parts):
        table: dict[str, list[Tensor]] = {}
        for original in originals:
            for key in spelling(original.name):
                table.setdefault(key, []).append(original)
        for tensor in computed(made):
            keys = [key for name in aliases[tensor] for key in spelling(name)]
            found = dict.fromkeys(t for key in keys for t in table.get(key, []) if _fits(tensor, t))
            if len(found) == 1 or (found and spelling is not _parts):
                yield tensor, next(iter(found))


def _aliases(graph: Graph) -> dict[Tensor, list[str]]:
    """Return the names of each computed tensor, including those of its conversions, which callers may use."""
    uses = Uses(graph)
    names = {t: [t.name] for t in computed(graph)}
    for op in graph.ops:
        if op.kind in CONVERSIONS and (converted := source(op.outputs[0], uses)) in names:
            names[converted].append(op.outputs[0].name)
    return names


def _whole(name: str) -> list[str]:
    return [name]


def _stripped(name: str) -> list[str]:
    found = []
    while (shorter := SUFFIX.sub("", name)) != name:
        found.append(name := shorter)
    return found or [name]


def _parts(name: str) -> list[str]:
    return [part for part in name.split(";") if part]


def _fits(tensor: Tensor, original: Tensor) -> bool:
    """Whether shapes agree; a dynamic dimension agrees with any."""
    one, other = tensor.dynamic_shape, original.dynamic_shape
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


def _by_place(wanted: Graph, made: Graph, known: Mapping[Tensor, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of ops of the same kind and shape, in the same order between known pairs."""
    taken = set(known.values())
    ops = [[op for op in graph.ops if op.kind not in CONVERSIONS and op.outputs] for graph in (wanted, made)]
    place = {op.outputs[0]: k for k, op in enumerate(ops[0])}
    anchors = [(-1, -1)]
    for k, op in enumerate(ops[1]):
        original = known.get(op.outputs[0])
        if original in place and place[original] > anchors[-1][0]:
            anchors.append((place[original], k))
    anchors.append((len(ops[0]), len(ops[1])))
    for (a, b), (a_end, b_end) in pairwise(anchors):
        for tensor, original in _in_order(ops[0][a + 1 : a_end], ops[1][b + 1 : b_end]):
            if tensor not in known and original not in taken:
                yield tensor, original


def _in_order(wanted: Sequence[Op], made: Sequence[Op]) -> Iterator[tuple[Tensor, Tensor]]:
    signs = [[(op.label, op.outputs[0].shape) for op in side] for side in (wanted, made)]
    for a, b, size in SequenceMatcher(None, signs[0], signs[1], autojunk=False).get_matching_blocks():
        for one, other in zip(wanted[a : a + size], made[b : b + size], strict=True):
            yield from zip(other.outputs, one.outputs, strict=False)


def _through_conversions(made: Graph, partner: Mapping[Tensor, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the results of conversions, which have the same counterpart as their inputs."""
    uses = Uses(made)
    for op in made.ops:
        if op.kind in CONVERSIONS and (original := partner.get(source(op.outputs[0], uses))) is not None:
            yield op.outputs[0], original
