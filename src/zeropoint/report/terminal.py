"""Values as lines of text: 80 columns on a terminal, whole names when piped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from .inspection import Inspection, Operand, OpRow, PortRow, QuantRow, SignatureRow, TensorRow


@dataclass(frozen=True)
class Detail:
    """How much of an inspection to show."""

    tensors: bool = True
    ops: bool = False
    channels: bool = False


def printable(text: str) -> str:
    """`text` with whatever a terminal would obey, or could not show, spelled out: names come from strangers."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


class Printer:
    """Prints styled lines; on a terminal long names are shortened in the middle, and what is still too long wraps."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(60, console.width) if console.is_terminal else None

    def line(self, *parts: tuple[str, str] | str) -> None:
        text = Text()
        for part in parts:
            text.append(printable(part)) if isinstance(part, str) else text.append(printable(part[0]), style=part[1])
        for line in self._wrapped(text):
            self.console.print(line, soft_wrap=True, highlight=False)

    def _wrapped(self, text: Text) -> Iterator[Text]:
        if self.width is None or text.cell_len <= self.width:
            yield text
            return
        indent = len(text.plain) - len(text.plain.lstrip())
        for k, line in enumerate(text[indent:].wrap(self.console, self.width - indent - 2)):
            yield Text(" " * (indent + 2 * min(k, 1))) + line

    def fit(self, name: str, room: int) -> str:
        """`name` in at most `room` columns less than the line has."""
        name = printable(name)
        limit = None if self.width is None else max(20, self.width - room)
        if limit is None or len(name) <= limit:
            return name
        head = (limit - 1) // 3
        return f"{name[:head]}…{name[len(name) - (limit - 1 - head) :]}"


def print_inspection(shown: Inspection, title: str, detail: Detail, console: Console) -> None:
    printer = Printer(console)
    _print_summary(shown, title, printer)
    if detail.tensors and shown.tensors:
        printer.line("")
        printer.line(("Tensors", "bold"))
        for tensor in shown.tensors:
            _print_tensor(tensor, detail, printer)
    if detail.ops and shown.ops:
        printer.line("")
        printer.line(("Ops", "bold"))
        for op in shown.ops:
            _print_op(op, detail, printer)


def bytes_text(size: int) -> str:
    """`26.7 kB`: powers of ten, as file managers show them."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.2f} GB"


def count_text(count: int) -> str:
    """`12.6 M`: large counts with a unit."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= limit:
            return f"{count / (limit if unit != 'k' else 1e3):.1f} {unit}"
    return f"{count:,}"


def _print_summary(shown: Inspection, title: str, printer: Printer) -> None:
    size = "" if shown.file_bytes is None else f"  {bytes_text(shown.file_bytes)}"
    printer.line((title, "bold"), size, f"  {len(shown.ops)} ops, {len(shown.tensors)} tensors")
    for signature in shown.signatures:
        _print_signature(signature, printer)
    data = ", ".join(f"{dtype} {bytes_text(n)}" for dtype, n in shown.data_bytes.items())
    rest = "" if shown.other_bytes is None else f"; structure {bytes_text(shown.other_bytes)}"
    printer.line(("Data  ", "bold"), (data or "none") + rest)
    printer.line(("Ops", "bold"))
    for kind, counts in sorted(shown.ops_by_kind.items(), key=lambda item: -item[1].total()):
        how = ", ".join(f"{n} {execution}" for execution, n in counts.most_common())
        printer.line(f"  {counts.total():4d}  {kind:28} {how}")
    if shown.integer_share is not None:
        parts = ", ".join(f"{count_text(n)} {execution}" for execution, n in shown.macs.items())
        printer.line(("Arithmetic  ", "bold"), f"{shown.integer_share:.1%} integer  (multiply-accumulates: {parts})")


def _print_signature(signature: SignatureRow, printer: Printer) -> None:
    printer.line(("Signature ", "bold"), signature.key if signature.key is not None else "(none)")
    for title, ports in (("in ", signature.inputs), ("out", signature.outputs)):
        for port in ports:
            printer.line(f"  {title} ", (printer.fit(port.name, 40), "cyan"), f"  {_port_type(port)}")


def _port_type(port: PortRow) -> str:
    described = type_text(port.dtype, port.shape)
    return described if port.formula is None else f"{described}  real = {port.formula}"


def type_text(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join('?' if d < 0 else str(d) for d in shape)}]"


def _print_tensor(tensor: TensorRow, detail: Detail, printer: Printer) -> None:
    shape = tensor.shape_signature or tensor.shape
    printer.line("  ", (printer.fit(tensor.name, 4), "cyan"))
    about = [tensor.kind, type_text(tensor.dtype, shape)]
    if tensor.quantization is not None:
        about.append(range_line(tensor.quantization))
    elif tensor.values is not None:
        about.append(f"values {tensor.values[0]:.5g} .. {tensor.values[1]:.5g}")
    if tensor.note:
        about.append(f"({tensor.note})")
    printer.line("    ", "  ".join(about))
    if detail.channels and tensor.quantization is not None and tensor.quantization.axis is not None:
        for line in _channel_lines(tensor.quantization):
            printer.line("      ", line)


def range_line(row: QuantRow) -> str:
    """The line people know from Netron: `-1.6488 ≤ 0.012566 * (q - 3) ≤ 1.5555`."""
    if row.axis is not None:
        return f"{row.formula}"
    return f"{row.low:.5g} ≤ {row.formula} ≤ {row.high:.5g}  ({row.source})"


def _channel_lines(row: QuantRow) -> Iterator[str]:
    for k, (scale, zero_point) in enumerate(zip(row.scales, row.zero_points, strict=True)):
        yield f"{k:5d}  scale {scale:.9g}  zero point {zero_point}"


def _print_op(op: OpRow, detail: Detail, printer: Printer) -> None:
    fused = "" if op.activation == "NONE" else f" + {op.activation}"
    cost = f"  {count_text(op.macs)} MAC" if op.macs else ""
    printer.line("  ", (f"{op.kind}{fused}", "green"), f"  v{op.version}  {op.execution}{cost}")
    for operand in op.inputs:
        _print_operand("in ", operand, printer)
    for operand in op.outputs:
        _print_operand("out", operand, printer)
    shown = op.multipliers if detail.channels or len(op.multipliers) <= 3 else op.multipliers[:1]
    for multiplier in shown:
        printer.line(f"    {multiplier}  (shift {multiplier.shift})")
    if len(shown) < len(op.multipliers):
        printer.line(f"    … and {len(op.multipliers) - len(shown)} channels more (--channels shows them)")


def _print_operand(title: str, operand: Operand | None, printer: Printer) -> None:
    if operand is None:
        printer.line(f"    {title} (left out)")
        return
    printer.line(f"    {title} ", (printer.fit(operand.name, 8), "cyan"))
    formula = "" if operand.formula is None else f"  {operand.formula}"
    printer.line(f"        {type_text(operand.dtype, operand.shape)}{formula}")
