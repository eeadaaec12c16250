"""zeropoint demo."""

from __future__ import annotations

from .options import console


def demo() -> None:
    """Run the main job on the example that comes with the package: handwritten digits, offline."""
    from ..report.demo import run_demo

    run_demo(console())
