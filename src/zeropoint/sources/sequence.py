"""Samples that are consecutive frames, for models whose states are inputs and outputs.

The samples contain only the frames. The float model is run on one after the other, and each run's states are stored
with its frame, so that calibration and everything else get complete samples, in any order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from ..errors import InvalidRecipe, argument, printable
from ..graph.model import Model, Tensor
from ..graph.query import tensor_keys
from ..runtime import Runner
from .data import DataSource, array_names, samples_from
from .ports import Entry, Port, Row, entry
from .samples import NotedSamples, Notes, Samples, rows

States = bool | Mapping[str, str]
"""Whether samples are a sequence; or {input: output}, which output of the last run each state input is filled with."""


@dataclass(frozen=True)
class State:
    """An input of a model, and the output that fills it in the next run."""

    port: Port
    output: Tensor
    name: str

    def __str__(self) -> str:
        return printable(f"'{self.port.name}' from '{self.name}'")


@dataclass
class Frames(NotedSamples):
    """Complete samples, made of frames and of what the model returned for the previous frame; zeros before the
    first."""

    model: Model
    where: Entry
    states: tuple[State, ...]
    frames: Samples
    notes: Notes = field(default_factory=Notes)

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """The keys of the state inputs, each with that of its output."""
        keys = tensor_keys(self.model)
        return tuple((keys[state.port.tensor], keys[state.output]) for state in self.states)

    def __call__(self) -> Iterator[Row]:
        fed = {state.port: np.zeros(state.port.tensor.shape, state.port.dtype.storage) for state in self.states}
        given = _without_states(self.where, self.states)
        runner = Runner.exposing(self.model, self.where.graph, [state.output for state in self.states])
        for _, frame in rows(self.frames, given, self.notes):
            values = {**fed, **dict(zip(given.ports, frame, strict=True))}
            row = tuple(values[port] for port in self.where.ports)
            yield row
            made = runner.run(row)
            fed = {s.port: np.array(value) for s, value in zip(self.states, made, strict=True)}


def sequence_of(model: Model, data: DataSource, asked: States, signature: str | None = None) -> Frames:
    """Return the frames in `data` as complete samples."""
    where = entry(model, signature)
    states = find_states(where, asked, _named_in(data))
    return Frames(model, where, states, samples_from(data, _without_states(where, states)))


def _without_states(where: Entry, states: Sequence[State]) -> Entry:
    """Return the entry with the inputs that frames are given for."""
    filled = {state.port for state in states}
    return replace(where, ports=tuple(port for port in where.ports if port not in filled))


def find_states(where: Entry, asked: States, given: Sequence[str] = ()) -> tuple[State, ...]:
    """Return the states: as requested, or else every input except the first and those `given` that matches an
    output."""
    outputs = dict(zip(where.graph.outputs, where.output_names, strict=True))
    if isinstance(asked, Mapping):
        return tuple(_named_state(where, outputs, *pair) for pair in asked.items())
    found, held, free = [], [], dict(outputs)
    for port in where.ports[1:]:
        fitting = [t for t in free if t.shape == port.tensor.shape and t.dtype is port.dtype]
        if fitting and set(port.names).intersection(given):
            held.append(repr(port.name))
        elif fitting:
            best = max(fitting, key=lambda t: SequenceMatcher(None, port.name, outputs[t]).ratio())
            found.append(State(port, best, free.pop(best)))
    if not found:
        what = "no input of the model looks like a state: one after the first, with the shape and type of an output; "
        if held:
            what = f"the samples hold every input that looks like a state ({', '.join(held)}); leave these out, or "
        raise InvalidRecipe(f"{what}name the states: {argument('sequence', 'INPUT=OUTPUT')}")
    return tuple(found)


def _named_state(where: Entry, outputs: Mapping[Tensor, str], source: str, result: str) -> State:
    port = next((p for p in where.ports if source in p.names), None)
    output = next((t for t, name in outputs.items() if result in (name, t.name)), None)
    if port is None or output is None:
        known = ", ".join(map(repr, outputs.values() if port is not None else (p.name for p in where.ports)))
        what = f"output {result!r}" if port is not None else f"input {source!r}"
        raise InvalidRecipe(f"the model has no {what}; it has {known}")
    if output.shape != port.tensor.shape or output.dtype is not port.dtype:
        held = f"{output.dtype.label}{list(output.shape)}"
        raise InvalidRecipe(f"the input {port} cannot be filled with the output '{result}', which is {held}")
    return State(port, output, outputs[output])


def _named_in(data: DataSource) -> Sequence[str]:
    """Return the names of inputs for which the data have arrays, if they are named."""
    if isinstance(data, str | os.PathLike):
        return array_names(os.fspath(data))
    if isinstance(data, Mapping):
        return tuple(data)
    first: Any = data[0] if isinstance(data, list | tuple) and len(data) else None
    return tuple(first) if isinstance(first, Mapping) else ()
