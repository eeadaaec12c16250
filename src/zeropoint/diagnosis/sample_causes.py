"""Reports samples that were probably preprocessed wrongly: no quantization can make up for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..bench.bench import Bench
from ..bench.sample_checks import LOUD_CHECK, NUMBER_CHECK, check_samples
from ..comparison.values import Diagnosis, Finding

SAME_FAULT = {"far_samples": "outlier_samples"}
"""Checks that duplicate a cause, which also measures the effect and names the samples."""

NO_CAUSES = (LOUD_CHECK.name, NUMBER_CHECK.name)
"""Checks of which quantization can make the best."""

BY_COMPARISON = ("unlike_data", "unnormalized_input")
"""Causes that assume that the data are right, and the calibration is wrong where it differs."""


def with_sample_findings(diagnosis: Diagnosis, benches: Mapping[str, Bench]) -> Diagnosis:
    """Return the diagnosis with findings about the samples of each bench put first; benches are keyed by a display
    name."""
    suspect, notes = list[Finding](), list[str]()
    known = {finding.cause for finding in diagnosis.findings}
    wrong_data = False
    for which, bench in benches.items():
        for found in check_samples(bench):
            if found.check in NO_CAUSES:
                notes.append(f"{which}: {found}")
            elif SAME_FAULT.get(found.check) not in known:
                wrong_data = wrong_data or which == next(iter(benches))
                suspect.append(Finding(found.check, f"{which}: {found.seen}", (), found.meaning, found.remedy))
    others = (f for f in diagnosis.findings if not (wrong_data and f.cause in BY_COMPARISON))
    judged = diagnosis.verdict.on_wrong_samples() if wrong_data else diagnosis.verdict
    return replace(diagnosis, findings=(*suspect, *others), notes=(*diagnosis.notes, *notes), verdict=judged)
