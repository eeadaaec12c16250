"""Results: a row for each task, mode and tool, each in a JSON file of its own that is written whole."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import zeropoint
from zeropoint.errors import ZeropointError
from zeropoint.files import write_whole
from zeropoint.parallel import cores

FLOAT = "float"
NO_MODE = "has no such mode"
"""The error of rows for what a tool was not made for."""
DEPENDENT = ("zeropoint", "lite")
"""Tools whose rows depend on zeropoint's source."""
SCHEMA = 1
PACKAGES = ("zeropoint", "ai-edge-litert", "tensorflow", "keras", "ai-edge-quantizer", "numpy")


@dataclass(frozen=True)
class Origin:
    """Where results come from: only rows of one origin may stand side by side."""

    versions: Mapping[str, str]
    machine: Mapping[str, str]
    settings: Mapping[str, Any]
    commit: str = ""
    """Of zeropoint. States with the same source are the same origin, whatever their commit."""


def origin(settings: Mapping[str, Any]) -> Origin:
    return Origin(versions(), machine(), json.loads(json.dumps(dict(settings))), commit())


def commit() -> str:
    """The commit of zeropoint's source, with a plus if files differ from it; empty if git does not know."""
    root = Path(zeropoint.__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(("git", "-C", str(root), *arguments), capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    found, changed = git("rev-parse", "--short", "HEAD"), git("status", "--porcelain", ".")
    return "" if found is None else found + ("+" if changed else "")


def versions() -> dict[str, str]:
    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    found = {package: of(package) for package in PACKAGES}
    return {**found, "zeropoint": f"{zeropoint.__version__} (source {source_digest()})", "Python": _python()}


def _python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def source_digest() -> str:
    """Tells states of the source apart between releases."""
    root = Path(zeropoint.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return found.hexdigest()[:8]


def machine() -> dict[str, str]:
    """What kind of machine this is, not which."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "processor": _processor(),
        "instruction sets": " ".join(instruction_sets()) or "not known",
        "cores": str(cores()),
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}, {platform.machine()}",
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm", "sve")
"""That make products of bytes fast, or of floats: as Linux calls them."""


def instruction_sets() -> tuple[str, ...]:
    """Those of INSTRUCTIONS that this processor has; none where the system does not tell."""
    info = Path("/proc/cpuinfo")
    words = set(info.read_text().split()) if info.exists() else set()
    return tuple(name for name in INSTRUCTIONS if name in words)


@dataclass(frozen=True)
class Row:
    """One model by one tool, or why there is none. `tool` is "float" for the model that all start from."""

    task: str
    mode: str
    tool: str
    variant: str | None = None
    error: str | None = None
    note: str = ""
    metric: str = "score"
    digest: str = ""
    """Of the float model."""
    score: float | None = None
    float_score: float | None = None
    """The float model's score on the same samples."""
    limit: int | None = None
    """The number of samples, where the score is not from all of them."""
    seconds: float | None = None
    """Scoring took this long."""
    size: int | None = None
    float_size: int | None = None
    conversions: int | None = None
    all_conversions: int | None = None
    float_ops: Mapping[str, int] = field(default_factory=dict)
    latency: Mapping[str, float] = field(default_factory=dict)
    """By number of threads: seconds; as a ratio to the float model's in the same rounds ("of float"); that ratio in the
    fastest and in the slowest of several runs ("lowest", "highest")."""
    whole: float | None = None
    """Seconds of processors from a model and samples to the bytes of the quantized model."""
    calibration: float | None = None
    """Seconds of that which went into collecting statistics."""
    peak: int | None = None
    """Bytes that quantization added to the peak memory of its process."""
    commit: str = ""
    """Of zeropoint, when the row was made."""

    @property
    def name(self) -> str:
        """The file's name, without its end."""
        return ".".join(part for part in (self.task, self.mode, self.tool, self.variant) if part)

    @property
    def relative_size(self) -> float | None:
        """As a ratio to the float model's."""
        return self.size / self.float_size if self.size and self.float_size else None

    @property
    def quantization(self) -> float | None:
        """Seconds of `whole` that were not calibration."""
        return None if self.whole is None else self.whole - (self.calibration or 0.0)


class MixedResults(ZeropointError):
    """Rows of another version, machine or configuration."""


@dataclass(frozen=True)
class Store:
    """The rows in a folder, all of one origin; with `keeps_older`, zeropoint itself may have changed in between."""

    folder: Path
    origin: Origin
    keeps_older: bool = False

    def rows(self) -> dict[str, Row]:
        """By name. Raises where a row is of another origin."""
        return {row.name: row for row, _ in self._read()}

    def current(self) -> dict[str, Row]:
        """Those that need not be made again: other tools do not depend on the state of zeropoint's source."""
        return {row.name: row for row, is_older in self._read() if not (is_older and row.tool in DEPENDENT)}

    def _read(self) -> Iterator[tuple[Row, bool]]:
        """Each row, and whether zeropoint has changed since."""
        for path in sorted(self.folder.glob("*.json")):
            content = json.loads(path.read_text())
            if content.get("schema") == SCHEMA:
                is_older = self._require_same(path, content["origin"])
                yield replace(Row(**content["row"]), commit=content["origin"].get("commit", "")), is_older

    def _require_same(self, path: Path, other: Mapping[str, Any]) -> bool:
        """Whether it is of another state of zeropoint. Raises where that is not allowed, or anything else differs."""
        is_older = False
        for part, values in asdict(self.origin).items():
            for key, value in values.items() if isinstance(values, Mapping) else ():
                stored = other[part].get(key)
                if stored == value:
                    continue
                if self.keeps_older and key == "zeropoint":
                    is_older = True
                    continue
                raise MixedResults(
                    f"{path.name} comes from other {part}: {key} was {stored}, now it is {value}; "
                    "choose another folder with -o, or drop what is there with --again"
                    + (", or keep it with --update" if key == "zeropoint" else "")
                )
        return is_older

    def drop_others(self) -> int:
        """Remove rows of another origin; how many there were."""
        dropped = 0
        for path in sorted(self.folder.glob("*.json")):
            content = json.loads(path.read_text())
            if content.get("schema") == SCHEMA and not self._is_same(path, content["origin"]):
                path.unlink()
                dropped += 1
        return dropped

    def _is_same(self, path: Path, other: Mapping[str, Any]) -> bool:
        try:
            return not self._require_same(path, other)
        except MixedResults:
            return False

    def add(self, row: Row) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {"schema": SCHEMA, "origin": asdict(self.origin), "row": asdict(row)}
        write_json(self.folder / f"{row.name}.json", content)


def write_json(path: Path, content: Any) -> None:
    write_whole(path, [(json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()], overwrite=True)


def write_all(path: Path, origin: Origin, rows: Iterable[Row]) -> None:
    """All rows in one file, for those who want to compute with them."""
    write_json(path, {"schema": SCHEMA, **asdict(origin), "rows": [asdict(row) for row in rows]})


def read_all(path: Path) -> tuple[Origin, list[Row]]:
    """What `write_all` wrote."""
    content = json.loads(path.read_text())
    known = {one.name for one in fields(Origin)}
    return Origin(**{name: content[name] for name in known & set(content)}), [Row(**row) for row in content["rows"]]
