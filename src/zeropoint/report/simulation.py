"""Prints the results of `trace` as text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from ..comparison.kernels import KernelComparison
from ..display import counted, share_text
from ..errors import shown_name
from ..ops.execution import execution_of
from ..simulation.explanation import Element, Explanation, Product
from ..simulation.trace import Trace
from .inspection import signed
from .terminal import Printer

SHOWN_PRODUCTS = 12
"""Maximum number of terms of a sum that are listed; --json has all of them."""


def print_trace(trace: Trace, console: Console) -> None:
    """Print every op, with the integers in its first output."""
    printer, rows = Printer(console), list(trace.integers())
    on_floats = [op for op in trace.entry.graph.ops if execution_of(op, trace.ops) == "hybrid"]
    if on_floats:
        shown = printer.fit(trace.names[on_floats[0].outputs[0]], 60)
        rounding = "1 layer rounds" if len(on_floats) == 1 else f"{len(on_floats)} layers round"
        printer.entry("Dynamic", f"{rounding} float data to integers; --tensor {shown} --at 0,... shows these")
    if not rows:
        return
    printer.line(("Integers ", "bold"), f"({counted(len(rows), 'op')}, {trace.kernels} kernels, one sample)")
    printer.line("    least  greatest  at ends  op")
    for row in rows:
        numbers = f"  {row.least:7}  {row.greatest:8}  {row.at_ends:7.1%}  "
        name = printer.fit(row.tensor, len(row.kind) + 20)
        where = "" if row.is_simulated else " by LiteRT"
        printer.row((numbers, ""), (row.kind, "green"), " ", (name, "cyan"), f" {row.dtype}{where}")


def print_explanation(found: Explanation, console: Console) -> None:
    printer = Printer(console)
    place = f"{shown_name(found.tensor)}[{place_text(found.index)}]"
    printer.line((place, "bold"), f" = {number_text(found.value)} {found.dtype}")
    made = f"{found.op} by {found.kernels} kernels" if found.op else ""
    printer.entry("Made by", ": ".join(part for part in (made, found.note) if part))
    for label, text in real_rows(found):
        printer.entry(label, text)
    for element in found.elements:
        printer.entry("Reads", element_text(element))
    _print_products(found, printer)
    for step in found.steps:
        printer.line(f"  {step.name:24} {number_text(step.value)}")


def real_rows(found: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the real number that an integer represents, and the float model's value."""
    if found.scale is not None and found.zero_point is not None:
        term = f"({found.value}{signed(-found.zero_point)})" if found.zero_point else str(found.value)
        yield "Real", f"{found.scale:.9g} * {term} = {found.real:.6g}"
    if found.float_model is not None:
        yield "Float model", f"{found.float_model:.6g}, off by {found.real - found.float_model:.3g}"


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
        printer.line(
            head, f": {counted(len(ops), 'op')} with other integers, {len(own)} of them by their own arithmetic"
        )
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
        same = f"the greatest element is the same in {share_text(output.same_greatest)} of rows"
        printer.entry(
            "Output", f"{shown_name(output.tensor)}: {share:.1%} differ, by at most {output.largest:.4g}; {same}"
        )


def _print_products(found: Explanation, printer: Printer) -> None:
    if not found.products:
        return
    padded = sum(product.data is None for product in found.products)
    on_image = [product for product in found.products if product.data is not None]
    padding = f", {padded} of them on padding, which counts as zero" if padded else ""
    printer.line(("Products", "bold"), f" {len(found.products)}{padding}")
    for product in on_image[:SHOWN_PRODUCTS]:
        assert product.data is not None
        places = f"[{place_text(product.data.index)}] * [{place_text(product.weight.index)}]"
        printer.line(f"  {places:34} {product_text(product, product.data)}")
    if rest := on_image[SHOWN_PRODUCTS:]:
        total = sum(product.value for product in rest)
        printer.line(f"  and {len(rest)} more, which add up to {total} (--json lists them)")


def product_text(product: Product, data: Element) -> str:
    return f"{centered_text(data)} * {centered_text(product.weight)} = {product.value}"


def element_text(element: Element) -> str:
    return f"{shown_name(element.tensor)}[{place_text(element.index)}] = {number_text(element.integer)}"


def centered_text(element: Element) -> str:
    offset = element.integer - element.centered
    return f"({element.integer}{signed(-int(offset))})" if offset else f"{element.integer}"


def place_text(index: tuple[int, ...]) -> str:
    return ",".join(map(str, index))


def number_text(value: int | float) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
