"""The columns of a report's table of ops: those that some op has a value for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .page_values import OpDetail, Page
from .terminal import count_text

Value = float | str | None


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None = None  # what numbers are sorted by
    hint: str | None = None


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    is_number: bool
    read: Callable[[OpDetail], Value]
    write: Callable[[float], str] = "{:.3g}".format

    def cell(self, op: OpDetail) -> Cell:
        value = self.read(op)
        if value is None:
            return Cell("")
        if isinstance(value, str):
            first = value.split(";")[0]  # converters join the names of all that they fused
            return Cell(f"{first}; …" if first != value else value, None, value)
        return Cell(self.write(value), value)


def _share(value: float) -> str:
    return f"{100 * value:.3g}%"


def _decibels(value: float) -> str:
    return f"{value:.1f}"


def columns_of(page: Page) -> Sequence[Column]:
    types = {name: tensor.type for name, tensor in page.tensors.items()}
    position = {op.id: k for k, op in enumerate(page.ops)}
    columns = (
        Column("position", "#", True, lambda op: float(position[op.id]), "{:.0f}".format),
        Column("kind", "Op", False, lambda op: op.kind),
        Column("name", "Name", False, lambda op: op.name or "(no output)"),
        Column("graph", "Graph", False, lambda op: op.graph if len(page.pictures) > 1 else None),
        Column("execution", "Execution", False, lambda op: op.execution),
        Column("type", "Output", False, lambda op: types[op.outputs[0]] if op.outputs else None),
        Column("own", "Own dB", True, lambda op: op.errors.own, _decibels),
        Column("accumulated", "Accum. dB", True, lambda op: op.errors.accumulated, _decibels),
        Column("expected", "Expected dB", True, lambda op: op.errors.expected, _decibels),
        Column("clipped", "Clipped", True, lambda op: op.errors.clipped, _share),
        Column("used", "Range used", True, lambda op: op.errors.used, _share),
        Column("macs", "MACs", True, lambda op: float(op.macs) if op.macs else None, lambda n: count_text(int(n))),
    )
    return [column for column in columns if any(column.read(op) is not None for op in page.ops)]
