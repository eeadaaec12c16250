"""What `trace` found, as lines of text."""

from __future__ import annotations

from rich.console import Console

from ..comparison.kernels import KernelComparison
from ..simulation.explanation import Element, Explanation
from ..simulation.trace import Trace
from .inspection import signed
from .terminal import Printer

SHOWN_PRODUCTS = 12
"""Terms of a sum that are listed; --json has all of them."""


def print_trace(trace: Trace, console: Console) -> None:
    """Every op, with the integers that its first output holds."""
    printer, rows = Printer(console), list(trace.integers())
    printer.line(("Integers ", "bold"), f"({len(rows)} ops, {trace.kernels} kernels, one sample)")
    printer.line("    least  greatest  at ends  op")
    for row in rows:
        numbers = f"  {row.least:7}  {row.greatest:8}  {row.at_ends:7.1%}  "
        name = printer.fit(row.tensor, len(numbers) + len(row.kind) + 20)
        where = "" if row.is_simulated else " by LiteRT"
        printer.line(numbers, (row.kind, "green"), " ", (name, "cyan"), f" {row.dtype}{where}")


def print_explanation(found: Explanation, console: Console) -> None:
    printer = Printer(console)
    printer.line((f"{found.tensor}[{_place(found.index)}]", "bold"), f" = {_number(found.value)} {found.dtype}")
    made = f"{found.op} by {found.kernels} kernels" if found.op else ""
    printer.entry("Made by", ": ".join(part for part in (made, found.note) if part))
    if found.scale is not None and found.zero_point is not None:
        term = f"({found.value}{signed(-found.zero_point)})" if found.zero_point else str(found.value)
        printer.entry("Real", f"{found.scale:.9g} * {term} = {found.real:.6g}")
    if found.float_model is not None:
        printer.entry("Float model", f"{found.float_model:.6g}, off by {found.real - found.float_model:.3g}")
    for element in found.elements:
        printer.entry("Reads", _element(element))
    _print_products(found, printer)
    for step in found.steps:
        printer.line(f"  {step.name:24} {_number(step.value)}")


def print_kernels(found: KernelComparison, console: Console) -> None:
    printer = Printer(console)
    for refusal in found.refused:
        printer.entry("Not run", f"{refusal.kernels}: {refusal.reason}")
    for name in found.kernels[1:]:
        ops = found.of(name)
        head = (f"{name} against {found.baseline}", "bold")
        if not ops:
            printer.line(head, f": the same integers everywhere ({found.samples} samples)")
            continue
        own = [op for op in ops if op.own_units]
        printer.line(head, f": {len(ops)} ops differ, {len(own)} of them by their own arithmetic")
        for op in ops[:1] if not own else dict.fromkeys((ops[0], max(own, key=lambda op: op.own_units or 0))):
            what = "First" if op is ops[0] else "Largest own"
            share = op.differing / max(1, op.elements)
            own_text = "" if op.own_units is None else f", {op.own_units:g} of its own"
            numbers = f"in {share:.2%} of its elements, by at most {op.units:g}{own_text}"
            printer.entry(what, (op.kind, "green"), " ", (printer.fit(op.tensor, 60), "cyan"), f": {numbers}")
        _print_outputs(found, name, printer)


def _print_outputs(found: KernelComparison, name: str, printer: Printer) -> None:
    outputs = [output for output in found.outputs if output.kernels == name]
    if not outputs:
        printer.entry("Outputs", "the same")
    for output in outputs:
        share = output.differing / max(1, output.elements)
        same = f"the greatest element is the same in {output.same_greatest:.1%} of rows"
        printer.entry("Output", f"{output.tensor}: {share:.1%} differ, by at most {output.largest:.4g}; {same}")


def _print_products(found: Explanation, printer: Printer) -> None:
    if not found.products:
        return
    padded = sum(product.data is None for product in found.products)
    on_image = [product for product in found.products if product.data is not None]
    padding = f", {padded} of them on padding, which counts as zero" if padded else ""
    printer.line(("Products", "bold"), f" {len(found.products)}{padding}")
    for product in on_image[:SHOWN_PRODUCTS]:
        assert product.data is not None
        data, weight = _centered(product.data), _centered(product.weight)
        places = f"[{_place(product.data.index)}] * [{_place(product.weight.index)}]"
        printer.line(f"  {places:34} {data} * {weight} = {product.value}")
    if rest := on_image[SHOWN_PRODUCTS:]:
        total = sum(product.value for product in rest)
        printer.line(f"  and {len(rest)} more, which add up to {total} (--json lists them)")


def _element(element: Element) -> str:
    return f"{element.tensor}[{_place(element.index)}] = {_number(element.integer)}"


def _centered(element: Element) -> str:
    offset = element.integer - element.centered
    return f"({element.integer}{signed(-int(offset))})" if offset else f"{element.integer}"


def _place(index: tuple[int, ...]) -> str:
    return ",".join(map(str, index))


def _number(value: int | float) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
