"""What one tree made of a case, and how that differs from what the other made of it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

MOST_SHOWN = 3
"""Lines of one list that are shown for a case: they tend to differ for one reason."""


@dataclass(frozen=True)
class Outcome:
    """A quantized model, or why there is none. `model` is the hash of its bytes; `ending` an error with its text, or
    how the process ended. `seconds` of processor time are not compared."""

    ending: str = ""
    model: str = ""
    size: int = 0
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def is_model(self) -> bool:
        return bool(self.model)

    @classmethod
    def of(cls, answer: dict[str, object]) -> Outcome:
        """Return the outcome that a child wrote as JSON."""
        return cls(**{key: tuple(v) if isinstance(v, list) else v for key, v in answer.items()})  # type: ignore[arg-type]


LISTS = tuple(field.name for field in fields(Outcome) if field.type == "tuple[str, ...]")


def differences(base: Outcome, now: Outcome) -> Iterator[str]:
    """Yield what differs, with `base` marked - and `now` marked +; nothing if both are the same."""
    if base.ending != now.ending:
        yield f"ending: - {base.ending or 'a model'} + {now.ending or 'a model'}"
        return
    if base.model != now.model:
        sizes = f"{base.size:,} bytes" if base.size == now.size else f"- {base.size:,} + {now.size:,} bytes"
        yield f"model: other bytes ({sizes})"
    for name in LISTS:
        changed = _changed_lines(getattr(base, name), getattr(now, name))
        if changed:
            rest = f" and {len(changed) - MOST_SHOWN} more" if len(changed) > MOST_SHOWN else ""
            yield f"{name}: {' '.join(changed[:MOST_SHOWN])}{rest}"


def _changed_lines(base: Sequence[str], now: Sequence[str]) -> list[str]:
    return [line for line in difflib.ndiff(base, now) if line[0] in "-+"]
