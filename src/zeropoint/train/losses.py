"""Losses of a student relative to its teacher, and on labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops as kops

from ..dtypes import Array
from ..errors import InvalidRecipe, InvalidSample, argument
from ..graph.model import Tensor
from ..ops import Probabilities

SMALLEST = 1e-12


def divergence(student: Any, teacher: Any) -> Any:
    """Return the Kullback-Leibler divergence of the student's distribution from the teacher's, from logits; mean over
    rows."""
    wanted = kops.log_softmax(teacher, axis=-1)
    return kops.mean(kops.sum(kops.exp(wanted) * (wanted - kops.log_softmax(student, axis=-1)), axis=-1))


def binary_divergence(student: Any, teacher: Any) -> Any:
    """Return the divergence for logits that are independent probabilities."""
    wanted = kops.sigmoid(teacher)
    return kops.mean(_cross_entropy(student, wanted) - _cross_entropy(teacher, wanted))


def _cross_entropy(logits: Any, wanted: Any) -> Any:
    return kops.relu(logits) - logits * wanted + kops.softplus(-kops.abs(logits))


def relative_error(student: Any, teacher: Any) -> Any:
    """Return the squared error relative to the variance of the teacher's values."""
    spread = kops.mean(kops.square(teacher - kops.mean(teacher)))
    return kops.mean(kops.square(student - teacher)) / kops.maximum(spread, SMALLEST)


def probabilities(logits: Any, head: Probabilities | None) -> Any:
    """Return the probabilities that the model computes from its logits, in float."""
    if head == "row":
        return kops.softmax(logits, axis=-1)
    return kops.sigmoid(logits) if head == "each" else logits


def label_loss(loss: Any, head: Probabilities | None) -> Callable[[Any, Any], Any] | None:
    """Return a loss of labels and logits: Keras's loss of that name, a Keras object, or any function of two arguments.

    Named losses of probabilities are computed from logits, which is numerically more stable. Others get what they
    expect: probabilities if the model ends in a softmax or sigmoid, unless they were created with `from_logits=True`.
    """
    if loss is None:
        return None
    found: Callable[..., Any] = _named(loss) if isinstance(loss, str) else loss
    name = loss_name(loss)
    if isinstance(loss, str) and not isinstance(found, keras.losses.Loss):
        return partial(found, from_logits=True) if head is not None and "crossentropy" in name else found
    if getattr(found, "_fn_kwargs", {}).get("from_logits", False):
        return found
    return lambda labels, logits: found(labels, probabilities(logits, head))


def _named(name: str) -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = keras.losses.get(name)
    except ValueError:
        raise InvalidRecipe(f"Keras has no loss {name!r}; try sparse_categorical_crossentropy or mse") from None
    return found


def loss_name(loss: Any) -> str:
    """Return the name of a loss in lower case, without underscores."""
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")
    return str(name).lower().replace("_", "")


def check_labels(labels: Sequence[Array], loss: Any, output: Tensor) -> None:
    """Raise unless the labels are what `loss` takes for the model's first output."""
    name, shape, wanted = loss_name(loss), labels[0].shape[1:], output.shape[1:]
    for number, label in enumerate(labels):
        if label.shape[1:] != shape:
            raise InvalidSample(
                f"the label of sample {number} has the shape {list(label.shape[1:])}, that of the first {list(shape)}; "
                "labels need one shape"
            )
    if "sparsecategorical" in name:
        _check_classes(labels, wanted)
    elif "categoricalcrossentropy" in name and shape != wanted:
        raise InvalidSample(
            f"labels for {argument('loss', _spelled(loss))} must have the shape of the output, {list(wanted)}, not "
            f"{list(shape)}; for class numbers use {argument('loss', 'sparse_categorical_crossentropy')}"
        )


def _check_classes(labels: Sequence[Array], wanted: tuple[int, ...]) -> None:
    """Raise unless labels are class numbers: one for each row of the output, from 0 up to the number of classes."""
    classes, shape = wanted[-1], labels[0].shape[1:]
    if shape not in (wanted[:-1], (*wanted[:-1], 1)) or (shape == wanted and classes > 1):
        hint = f"; for one-hot labels use {argument('loss', 'categorical_crossentropy')}" if shape == wanted else ""
        raise InvalidSample(
            f"labels must be class numbers of shape {list(wanted[:-1])} for each sample, not {list(shape)}{hint}"
        )
    for number, label in enumerate(labels):
        wrong = label[(label < 0) | (label >= classes) | (label != np.round(label))]
        if wrong.size:
            raise InvalidSample(
                f"the label of sample {number} is {wrong.flat[0]}, and the model has {classes} classes: labels are "
                f"whole numbers from 0 to {classes - 1}"
            )


def _spelled(loss: Any) -> str:
    return loss if isinstance(loss, str) else type(loss).__name__
