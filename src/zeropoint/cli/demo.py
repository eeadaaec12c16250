"""zeropoint demo."""

from __future__ import annotations

from .screen import Screen


def demo(screen: Screen) -> None:
    """Run the main job on the example that comes with the package: handwritten digits, offline.

    Examples:
      zeropoint demo
    """
    from ..report.demo import run_demo

    run_demo(screen.results)
