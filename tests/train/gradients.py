"""The value of a function and its gradients, on whatever backend Keras runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from zeropoint.dtypes import Array


def value_and_gradients(
    f: Callable[..., Any], arguments: Sequence[Array], upstream: Array
) -> tuple[Array, list[Array]]:
    """f(*arguments), and for each argument the gradient of sum(f * upstream)."""
    name = keras.backend.backend()
    value, found = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[name](f, arguments, upstream)
    return np.asarray(value), [np.asarray(g) for g in found]


def _tensorflow(f: Callable[..., Any], arguments: Sequence[Array], upstream: Array) -> tuple[Any, list[Any]]:
    import tensorflow as tf

    inputs = [tf.constant(a) for a in arguments]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = f(*inputs)
    return value, tape.gradient(value, inputs, output_gradients=tf.constant(upstream))


def _jax(f: Callable[..., Any], arguments: Sequence[Array], upstream: Array) -> tuple[Any, list[Any]]:
    import jax

    value, pull = jax.vjp(f, *arguments)
    return value, list(pull(upstream))


def _torch(f: Callable[..., Any], arguments: Sequence[Array], upstream: Array) -> tuple[Any, list[Any]]:
    import torch

    inputs = [torch.tensor(a, requires_grad=True) for a in arguments]
    value = f(*inputs)
    value.backward(torch.tensor(upstream))
    return value.detach(), [t.grad for t in inputs]
