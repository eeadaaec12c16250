"""Tools in environments of their own (`benchmarks.environments`): Sony's MCT, and NNCF with OpenVINO."""

from __future__ import annotations

import io
import tempfile
import threading
import time
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from zeropoint.tflite import load

from .apart import Failed
from .inference import Facts, Judgement
from .keras2 import rebuilt
from .orders import Job, Order, Outcome
from .zoo import Place, Task, source_of

# Sony's MCT: a Keras 2 model in, a .tflite out.


def mct_job(_: Order, task: Task, samples: list[Any]) -> Job:
    import model_compression_toolkit as mct
    import tensorflow

    source = source_of(task)
    if source is None or source.is_dir():
        raise Failed("takes Keras models and modules of PyTorch; the task has neither")
    model = rebuilt(source, tensorflow.keras)
    note = f"MCT {version('model-compression-toolkit')}, TensorFlow {tensorflow.__version__}"

    def quantize() -> Outcome:
        found = mct.ptq.keras_post_training_quantization(model, lambda: map(list, samples))[0]
        exporter = mct.exporter
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "made.tflite"
            exporter.keras_export_model(
                found,
                str(path),
                serialization_format=exporter.KerasExportSerializationFormat.TFLITE,
                quantization_format=exporter.QuantizationFormat.INT8,
            )
            return Outcome(path.read_bytes(), note=note)

    return quantize


# NNCF: OpenVINO reads the .tflite; what comes out runs in OpenVINO, and is here to be scored.

XML, BIN = "model.xml", "model.bin"
PACKED = b"PK"
"""How a packed model begins."""


def nncf_job(_: Order, task: Task, samples: list[Any]) -> Job:
    import nncf
    import openvino

    # Its documentation asks for this option for transformers; products of two activations give them away.
    kinds = {op.kind for op in load(task.model).main.ops}
    kind = nncf.ModelType.TRANSFORMER if "BATCH_MATMUL" in kinds else None
    asked = "as a transformer; " if kind is not None else ""
    note = f"NNCF {version('nncf')}; {asked}runs in OpenVINO {version('openvino')}, not in LiteRT"

    def quantize() -> Outcome:
        model = openvino.convert_model(str(task.model))
        data = nncf.Dataset(list(samples), list)
        found = nncf.quantize(model, data, subset_size=len(samples), model_type=kind)
        with tempfile.TemporaryDirectory() as folder:
            openvino.save_model(found, str(Path(folder) / XML), compress_to_fp16=False)
            return Outcome(_packed(Path(folder)), note=note)

    return quantize


def _packed(folder: Path) -> bytes:
    """Both files of a model as one."""
    packed = folder / "model.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for name in (XML, BIN):
            archive.write(folder / name, name)
    return packed.read_bytes()


def judge_openvino(place: Place, model: str, limit: int | None) -> Judgement:
    """The score of a packed model: the task runs it as it runs any other. For a process that does nothing else."""
    import ai_edge_litert.interpreter as litert

    original = litert.Interpreter

    def interpreter(model_path: str | None = None, model_content: bytes | None = None, **options: Any) -> Any:
        content = Path(model_path).read_bytes() if model_path is not None else model_content or b""
        return OpenVino(content) if content.startswith(PACKED) else original(model_path, model_content, **options)

    litert.Interpreter = interpreter
    with zipfile.ZipFile(model) as archive:
        size = sum(archive.getinfo(name).file_size for name in (XML, BIN))
    start = time.perf_counter()
    score = float(place.task.evaluate(model, limit))
    return Judgement(score, time.perf_counter() - start, Facts(size, None, None, {}))


OPENVINO_LOCK = threading.Lock()
"""OpenVINO 2026.4 sometimes deadlocks if two threads ask for the type of a port for the first time."""


class OpenVino:
    """As much of LiteRT's `Interpreter` as tasks use, on a packed model. Inputs come first among the indices."""

    def __init__(self, content: bytes) -> None:
        import openvino

        with OPENVINO_LOCK:
            with tempfile.TemporaryDirectory() as folder:
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    archive.extractall(folder)
                self.model = openvino.compile_model(str(Path(folder) / XML), "CPU", {"INFERENCE_NUM_THREADS": 1})
            self.details = [_details(k, port) for k, port in enumerate((*self.model.inputs, *self.model.outputs))]
        self.values: dict[int, Any] = {}

    def allocate_tensors(self) -> None:
        """Nothing to do."""

    def get_input_details(self) -> list[dict[str, Any]]:
        return self.details[: len(self.model.inputs)]

    def get_output_details(self) -> list[dict[str, Any]]:
        return self.details[len(self.model.inputs) :]

    def set_tensor(self, index: int, value: Any) -> None:
        self.values[index] = value

    def invoke(self) -> None:
        found = self.model({index: self.values[index] for index in range(len(self.model.inputs))})
        for k, port in enumerate(self.model.outputs):
            self.values[len(self.model.inputs) + k] = found[port]

    def get_tensor(self, index: int) -> Any:
        return self.values[index]


def _details(index: int, port: Any) -> dict[str, Any]:
    """What LiteRT tells of an input or output. None is quantized: OpenVINO's models take and give floats."""
    shape = [1 if size.is_dynamic else size.get_length() for size in port.partial_shape]
    return {
        "index": index,
        "name": port.any_name,
        "shape": np.array(shape, np.int32),
        "dtype": np.dtype(port.element_type.to_dtype()).type,
        "quantization": (0.0, 0),
    }
