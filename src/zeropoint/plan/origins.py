"""Which parameters of a plan were given, rather than measured or computed from constants, and by whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ..affine import QuantParams
from ..calibration import Range, Ranges
from ..graph.model import Tensor
from ..graph.query import Use
from ..ops import Bias, OpSpec, spec_of
from .plan import Form, Group, Origin, Plan
from .solve import in_type
from .tensor_ranges import TensorRanges

IN_THE_MODEL = "scales in the model"
"""The origin of constants that quantization-aware training left on a grid."""


def with_origins(plans: Iterable[Plan], ranges: TensorRanges, ops: Mapping[str, OpSpec]) -> tuple[Plan, ...]:
    """Return plans that record who gave parameters. If tensors share them, what was given for one holds for all."""
    if not ranges.has_given:
        return tuple(plans)
    return tuple(replace(plan, origins=_origins(plan, ranges, ops)) for plan in plans)


def unused_notes(plans: Iterable[Plan], given: Ranges, keys: Mapping[Tensor, str]) -> Iterator[str]:
    """Yield a note on ranges that a user gave for tensors that need none. Other tools' files have many of these."""
    used = {keys.get(tensor) for plan in plans for tensor in plan.given}
    unused = [name for name in given.entries if name not in used]
    if unused and not given.foreign:
        what = "1 given range is" if len(unused) == 1 else f"{len(unused)} given ranges are"
        more = "" if len(unused) <= LISTED else f" and {len(unused) - LISTED} more"
        names = ", ".join(repr(name) for name in unused[:LISTED])
        yield f"{what} not used, as these tensors stay float, or kernels fix their scales: {names}{more}"


LISTED = 5
"""Names in a note."""


def _origins(plan: Plan, ranges: TensorRanges, ops: Mapping[str, OpSpec]) -> dict[Tensor | Use, Origin]:
    found: dict[Tensor | Use, Origin] = {}
    for group, text in ((group, _of_group(group, ranges)) for group in plan.groups):
        for node in group.nodes if text else ():
            place = node if isinstance(node, Use) else node.tensor
            held = plan.form(place) if isinstance(place, Use) else plan.stored.get(place)
            if held is not None and (held == group.params or not isinstance(place, Use)):
                found[place] = Origin(text, held)
    held_constants = {**plan.constants.grids, **{use: packed.form for use, packed in plan.packed.items()}}
    for use in held_constants:
        form = plan.form(use)
        if form is not None and (text := _of_constant(use, form, ranges, ops)):
            found[use] = Origin(text, form)
    return found


def _of_group(group: Group, ranges: TensorRanges) -> str:
    """Return the origin of a group: of parameters that were given, or else of all given ranges if nothing is
    prescribed."""
    entries = [(node.tensor, ranges.entry(node.tensor)) for node in group.nodes]
    known = [(tensor, entry) for tensor, entry in entries if entry is not None]
    exact = [entry for _, entry in known if in_type(entry.params, group.params.dtype) == group.params]
    if exact or group.fixed:  # parameters fixed by a kernel cannot be given
        return _joined(exact)
    return _joined([entry for tensor, entry in known if ranges.is_given(tensor)] or [entry for _, entry in known])


def _of_constant(use: Use, form: Form, ranges: TensorRanges, ops: Mapping[str, OpSpec]) -> str:
    spec, trained = spec_of(use.op, ops), ranges.trained.constants.get(use.tensor)
    if not isinstance(form, QuantParams) or isinstance(spec.input_role(use.slot), Bias):
        return ""
    if ranges.is_given(use.tensor):
        return ranges.given.entries[ranges.keys[use.tensor]].origin
    return IN_THE_MODEL if trained is not None and trained.scales == form.scales else ""


def _joined(entries: Iterable[Range]) -> str:
    return ", ".join(dict.fromkeys(entry.origin for entry in entries if entry.origin))
