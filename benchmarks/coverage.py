"""Every `.tflite` in a folder in every mode, each in a process of its own: it runs, is refused, is far off, or fails.

`python -m benchmarks.coverage FOLDER [--modes int8,dynamic] [--data FOLDER] [-o coverage.json] [--page coverage.md]`

Samples are random unless `--data` has a file `NAME.npz` for a model `NAME.tflite`. A rerun with the same `-o` does what
is missing or failed, if versions and settings are the same. Ends with 1 if anything crashed, hung or raised an
exception that is not one of zeropoint's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import zeropoint
from zeropoint.dtypes import Array, DType
from zeropoint.errors import ZeropointError
from zeropoint.files import write_whole
from zeropoint.sources.ports import Entry, Port, entries
from zeropoint.tflite import load

from .apart import FOLDERS, Failed, apart
from .modes import DEFAULT_MODES, MODES
from .page import pairs, table
from .rows import origin, write_json

Kind = Literal["runs", "low SNR", "refused", "cannot be judged", "failed"]
KINDS: Mapping[Kind, str] = {
    "runs": "quantized, and it runs",
    "low SNR": "the same, but its outputs are far from the float model's",
    "refused": "an error of zeropoint's says why",
    "cannot be judged": "it is made and runs, but there are no samples, or the float model's outputs are not finite",
    "failed": "a crash, a hang, or an exception that is not zeropoint's",
}
LARGEST = 1 << 24
"""Elements of an input that samples are drawn for."""
SIDE, LENGTH = 32, 2048
"""What dimensions that may vary are drawn as, beyond the first: the sides of an image, or the length of a signal."""
TEXT = b"what it says in a text"
INDICES = 2
"""Integer inputs are mostly indices, and below this few tables end."""


@dataclass(frozen=True)
class Outcome:
    """What became of a model in a mode. `integer` is the share of its multiplications that are in integers."""

    model: str
    mode: str
    kind: Kind
    snr: float | None = None
    integer: float | None = None
    note: str = ""


class NoSamples(ZeropointError):
    """An input for which none can be drawn."""


def draw(port: Port, rng: np.random.Generator) -> Array:
    varying = SIDE if len(port.shape) > 2 else LENGTH
    shape = [size if size >= 0 else varying if place else 1 for place, size in enumerate(port.shape)]
    if port.dtype is DType.STRING and np.prod(shape) <= LARGEST:
        return np.full(shape, TEXT, object)
    if port.dtype.storage is None or np.prod(shape) > LARGEST:
        raise NoSamples(f"there are no samples for the input {port}; give some with --data")
    if np.issubdtype(port.dtype.storage, np.floating):
        return rng.random(shape).astype(port.dtype.storage)
    return rng.integers(0, INDICES, shape).astype(port.dtype.storage)


def samples_of(where: Entry, path: Path, data: Path | None, count: int) -> Any:
    given = None if data is None else data / f"{path.stem}.npz"
    if given is not None and given.exists():
        return str(given)
    rng = np.random.default_rng(0)
    return [tuple(draw(port, rng) for port in where.ports) for _ in range(count)]


def attempt(path: Path, mode: str, data: Path | None, count: int, target: str | None) -> tuple[Kind, Any, Any, str]:
    """Quantize one model and compare it with itself as it was. Runs in a child process."""
    has_data = MODES[mode].has_data
    try:
        model = load(path)
        by_key: dict[str, Any] = {}
        try:
            by_graph = {e.graph: e for e in entries(model)}
            by_key = {e.key or "": samples_of(e, path, data, count) for e in by_graph.values()}
        except NoSamples as lack:
            if has_data:
                raise
            reason = str(lack)
        given = (by_key if len(by_key) > 1 else next(iter(by_key.values()))) if has_data else None
        options = {**MODES[mode].options, "effort": "quick", "target": target if has_data else None}
        made = zeropoint.quantize(model, data=given, **options)
        integer = zeropoint.inspect(made.model).integer_share
        if not by_key:
            return "cannot be judged", None, integer, reason
        key, samples = next(iter(by_key.items()))
        compared = zeropoint.compare(model, made.model, samples, limit=4, signature=key or None)
    except ZeropointError as error:
        return "refused", None, None, FOLDERS.sub("", " ".join(str(error).split()))
    if not all(np.isfinite(one.largest) for one in compared.outputs):
        return "cannot be judged", None, integer, "outputs are not finite"
    return "runs", compared.snr, integer, "; ".join(made.warnings)


def outcome(path: Path, mode: str, options: argparse.Namespace) -> Outcome:
    try:
        kind, snr, integer, note = apart(
            attempt, path, mode, options.data, options.samples, options.target, timeout=options.timeout
        )
    except Failed as failure:
        return Outcome(path.stem, mode, "failed", note=str(failure))
    if kind == "runs" and snr < options.low:
        kind = "low SNR"
    return Outcome(path.stem, mode, kind, snr, integer, note)


def outcomes(options: argparse.Namespace, known: Sequence[Outcome]) -> Iterator[tuple[Outcome, bool]]:
    """Each with whether it is new."""
    kept = {(one.model, one.mode): one for one in known if one.kind != "failed"}
    for path in files_in(options.folder):
        for mode in options.modes:
            old = kept.get((path.stem, mode))
            yield (outcome(path, mode, options), True) if old is None else (old, False)


def origin_of(options: argparse.Namespace) -> dict[str, Any]:
    """What has to be the same for outcomes to stand beside each other, as JSON has it."""
    settings = {name: getattr(options, name) for name in ("samples", "target", "low")}
    found: dict[str, Any] = json.loads(json.dumps(asdict(origin(settings))))
    return found


def stored(path: Path | None, wanted: Mapping[str, Any]) -> list[Outcome]:
    """Those of an earlier run that may be kept."""
    if path is None or not path.exists():
        return []
    content = json.loads(path.read_text())
    if any(content["origin"][part] != wanted[part] for part in ("versions", "machine", "settings")):
        print(f"{path} is of other versions, another machine or other settings; all is done again", file=sys.stderr)
        return []
    return [Outcome(**one) for one in content["outcomes"]]


def files_in(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.tflite"))
    if not found:
        raise ZeropointError(f"there is no .tflite file in {folder}")
    return found


def page(found: Sequence[Outcome], origin: Mapping[str, Any]) -> Iterator[str]:
    """Totals by mode, then every model; what did not simply run is told below, and how it was found."""
    modes = list(dict.fromkeys(one.mode for one in found))
    models = list(dict.fromkeys(one.model for one in found))
    yield "# Models of any origin\n"
    data = "random samples, unless a model came with some" if origin["with_data"] else "random samples"
    yield (
        f"{len(models)} models in {len(modes)} modes at quick effort on {data}, by `python -m benchmarks.coverage`: "
        "what zeropoint does with models that it was not made for. SNRs on random samples say little about accuracy on "
        "real ones. "
        + "; ".join(f"**{kind}**: {meaning}" for kind, meaning in KINDS.items())
        + f"; far is below {origin['settings']['low']:g} dB.\n"
    )
    counts = Counter((one.mode, one.kind) for one in found)
    yield from table(("mode", *KINDS), [(mode, *(str(counts[mode, kind]) for kind in KINDS)) for mode in modes])
    yield "\nEach cell: SNR in dB, and the share of multiplications in integers.\n"
    cells = {(one.model, one.mode): _cell(one) for one in found}
    yield from table(("model", *modes), [(name, *(cells[name, mode] for mode in modes)) for name in models])
    told: dict[tuple[str, Kind, str], list[str]] = {}
    for one in found:
        if one.kind not in ("runs", "low SNR"):
            told.setdefault((one.model, one.kind, one.note), []).append(one.mode)
    yield "\n## Refused, not judged, failed\n"
    for (model, kind, note), where in told.items():
        yield f"- {model} ({'all modes' if where == modes else ', '.join(where)}): {kind}: {note}"
    yield "\n## About this run\n"
    yield f"- zeropoint at commit {origin['commit']}" if origin["commit"] else "- zeropoint's commit is not known"
    yield f"- versions: {pairs(origin['versions'])}"
    yield f"- machine: {pairs(origin['machine'])}"


def _cell(one: Outcome) -> str:
    if one.snr is None:
        return one.kind
    share = "" if one.integer is None else f", {one.integer:.0%}"
    return f"{one.snr:.1f}{share}" + (" (low)" if one.kind == "low SNR" else "")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("folder", type=Path, help="where the models are; folders below it count")
    made.add_argument("--modes", type=lambda text: text.split(","), default=list(DEFAULT_MODES))
    made.add_argument("--data", type=Path, help="a folder with samples, NAME.npz for NAME.tflite (default: random)")
    made.add_argument("--samples", type=int, default=8, help="random ones (default: 8)")
    made.add_argument("--target", help="for modes with data (default: that of zeropoint)")
    made.add_argument(
        "--low", type=float, default=10.0, help="the SNR in dB below which a model is far off (default: 10)"
    )
    made.add_argument("--timeout", type=float, default=600, help="seconds for one model in one mode (default: 600)")
    made.add_argument("-o", "--output", type=Path, help="all outcomes as JSON")
    made.add_argument("--page", type=Path, help="a page of Markdown")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    found: list[Outcome] = []
    here = origin_of(options)
    try:
        if unknown := [mode for mode in options.modes if mode not in MODES]:
            raise ZeropointError(f"there is no mode {', '.join(unknown)}; choose from {', '.join(MODES)}")
        for one, is_new in outcomes(options, stored(options.output, here)):
            found.append(one)
            if is_new and options.output is not None:
                write_json(options.output, {"origin": here, "outcomes": [asdict(each) for each in found]})
            print(f"{one.model}, {one.mode}: {_cell(one)}{f': {one.note}' if one.snr is None else ''}", flush=True)
    except ZeropointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was done is kept", file=sys.stderr)
    if options.page is not None:
        text = "\n".join(page(found, {**here, "with_data": options.data is not None}))
        write_whole(options.page, [text.encode() + b"\n"], overwrite=True)
    totals = Counter(one.kind for one in found)
    print("; ".join(f"{totals[kind]} {kind}" for kind in KINDS))
    return int(totals["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
