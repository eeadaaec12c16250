"""Why zeropoint is behind another tool, where it is: reasons written by hand. The first that fits counts.

`behind` finds the cases; a test demands a reason for each case in docs/results, and a case for each reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Reason:
    """Patterns of names, alternatives separated by spaces, and what to say."""

    text: str
    measure: str
    modes: str = "*"
    tasks: str = "*"
    tools: str = "*"

    def fits(self, measure: str, mode: str, task: str, tool: str) -> bool:
        asked = ((self.measure, measure), (self.modes, mode), (self.tasks, task), (self.tools, tool))
        return all(any(fnmatchcase(name, one) for one in patterns.split()) for patterns, name in asked)


REASONS: tuple[Reason, ...] = ()


def reason_for(measure: str, mode: str, task: str, tool: str) -> str | None:
    """Why; None where nobody has said."""
    return next((reason.text for reason in REASONS if reason.fits(measure, mode, task, tool)), None)
