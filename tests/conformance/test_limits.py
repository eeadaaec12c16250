"""The limits of LiteRT's kernels, swept sparsely: what is beyond stays float, and what is within is right."""

from __future__ import annotations

from zeropoint.ops import OPS

from .sweep import BY_NAME, Point, computing_samples, points, sweep

SIZES = (1e-30, 1e-7, 1e3, 1e20)
STRETCHES = (2.0**-20, 2.0**-9)


def test_numbers_of_all_sizes_give_right_models_or_refusals() -> None:
    found = list(sweep(points(computing_samples(), SIZES, STRETCHES)))
    assert [f"{point}: {outcome}" for point, outcome in found if not outcome.is_right] == []
    # Refusing everything would be right as well.
    kept = {BY_NAME[point.sample].kind for point, outcome in found if outcome.off and point.stretch is None}
    others = [name for name in computing_samples() if BY_NAME[name].kind not in kept]  # logarithms of probabilities
    kept |= {BY_NAME[point.sample].kind for point, outcome in sweep(points(others, (1.0,), ())) if outcome.off}
    assert {BY_NAME[name].kind for name in computing_samples()} - kept <= {k for k, row in OPS.items() if row.tied}


def test_without_limits_kernels_end_the_process_or_compute_something_else() -> None:
    tried = [
        Point("SQUARED_DIFFERENCE-two", "int8", stretch=2.0**-24),
        Point("GREATER-two", "int8", 1e3, 1e3),
        Point("RELU-values", "int8", 1e3),
    ]
    ended, wrong, right = (outcome for _, outcome in sweep(tried, limited=False))
    assert "ended the process" in ended.failure
    assert not wrong.is_right
    assert not wrong.failure
    assert right.is_right
