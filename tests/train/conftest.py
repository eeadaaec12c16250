"""Training tests run on one backend of Keras for each process: TensorFlow, unless KERAS_BACKEND says otherwise."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
