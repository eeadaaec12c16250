"""Wrongly prepared samples are noticed, and those that are right are not accused."""

from __future__ import annotations

import numpy as np
import pytest

import zeropoint
from zeropoint.bench.bench import Bench
from zeropoint.bench.conventions import PIXELS, SIGNED, TWICE, UNIT, convention_of
from zeropoint.bench.sample_checks import FEW, check_samples
from zeropoint.calibration import Settings
from zeropoint.demo import digits as digits_data
from zeropoint.graph.model import Buffer
from zeropoint.sources.models import load
from zeropoint.tflite.builder import OFFSET, Builder
from zeropoint.tflite.metadata import NAME

from ..nets import Net, normal, samples_for
from ..tflite.tables import put_table

COUNT = 40


@pytest.fixture(scope="module")
def images():
    return [image[None] for image in digits_data()["calibration"][:COUNT]]


def found(model, samples):
    """What each check that found something says, by its name."""
    bench = Bench(load(model), samples, Settings(histograms=False), holds_back=True)
    return {one.check: str(one) for one in check_samples(bench)}


MISTAKES = {
    "zeros": (lambda x: [np.zeros_like(i) for i in x], "constant_samples", "hold zeros"),
    "one value": (lambda x: [np.full_like(i, 0.5) for i in x], "constant_samples", "the same value"),
    "one image": (lambda x: [x[0]] * len(x), "equal_samples", f"all {COUNT} samples are equal"),
    "one image and noise": (lambda x: [x[0] + normal(*x[0].shape, seed=k, spread=1e-5) for k in range(COUNT)],
                            "equal_samples", "nearly equal"),
    "one far away": (lambda x: [*x[:9], 1000 * x[9], *x[10:]], "far_samples", "one sample has values up to 1000"),
    "pixels": (lambda x: [255 * i for i in x], "other_normalization", "scale=0.0039216"),
    "scaled twice": (lambda x: [i / 255 for i in x], "other_normalization", "x * 255 for arrays"),
    "one sample": (lambda x: x[:1], "few_samples", "there is one sample"),
    "few samples": (lambda x: x[: FEW - 1], "few_samples", f"there are {FEW - 1} samples"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_noticed(digits, images, mistake):
    spoil, check, says = MISTAKES[mistake]
    findings = found(digits, spoil(images))
    assert list(findings) == [check, *(["loud_samples"] if check == "far_samples" else [])]
    assert says in findings[check]


def test_right_samples_are_not_accused(digits, images):
    assert found(digits, images) == {}
    assert found(digits, [np.concatenate(images)]) == {}  # one batch is many samples
    labels = digits_data()["test_labels"]
    of_one_class = [i[None] for i in digits_data()["test_images"][labels == 3][:COUNT]]
    assert found(digits, of_one_class) == {}


def test_quantize_warns_and_shows_the_certainty(digits, images):
    result = zeropoint.quantize(digits, data=[255 * i for i in images])
    assert "0 to 255" in result.warnings[0]
    assert "scale=0.0039216" in result.warnings[0]
    assert not zeropoint.quantize(digits, data=images).warnings


def classifier(bias: float, gain: float = 1.0, layers: int = 3):
    """Convolutions with biases of the size of their responses to values of 0 to 1, times `bias`."""
    net = Net()
    x = net.input(1, 12, 12, 3)
    for k in range(layers):
        fan = 9 * (3 if k == 0 else 8)
        kernel = normal(8, 3, 3, 3 if k == 0 else 8, seed=k, spread=gain if k == 0 else (2 / fan) ** 0.5)
        x = net.conv(x, kernel, normal(8, seed=50 + k, spread=bias), activation=1)
    flat = net("RESHAPE", [x, np.array([1, 1152], np.int32)], (1, 1152))
    return net.model(net("SOFTMAX", [net.dense(flat, normal(5, 1152, seed=9, spread=0.05))], beta=1.0))


def pictures(scale: float, offset: float = 0.0):
    """Images that differ in kind, not in noise alone."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (COUNT, 3, 3, 3)).repeat(4, axis=1).repeat(4, axis=2)
    return [(image[None] * scale + offset).astype(np.float32) for image in coarse]


def test_a_network_without_normalization_may_take_pixels():
    """Its biases are small beside its responses, and with smaller numbers its answers would all be the same."""
    plain = classifier(bias=0.5, gain=0.02)
    assert found(plain, pictures(1.0)) == {}


def test_pixels_that_are_scaled_for_a_model_that_takes_them():
    model = classifier(bias=1.0, gain=0.005)
    assert found(model, pictures(1.0)) == {}
    findings = found(model, pictures(1 / 255))
    assert "x * 255 for arrays" in findings["other_normalization"]
    assert "certainty" in findings["other_normalization"]


def test_inputs_that_are_no_images_have_no_convention():
    net = Net()
    model = net.model(net.dense(net.input(1, 16), normal(4, 16), normal(4)))
    assert found(model, samples_for(model, COUNT)) == {}
    assert found(model, [(abs(a) * 100,) for (a,) in samples_for(model, COUNT)]) == {}


@pytest.mark.parametrize("convention", [PIXELS, UNIT, SIGNED, TWICE])
def test_conventions_are_recognised_and_translated(convention):
    bench = Bench(classifier(1.0), pictures(convention.scale, convention.offset))
    assert convention_of(bench.entry.ports, bench.rows) == convention
    for other in convention.others:
        translated = other.instead_of(convention, bench.rows)
        assert convention_of(bench.entry.ports, translated) == other
        expected = pictures(other.scale, other.offset)
        assert all(
            np.allclose(a, b, atol=1e-4 * 255 * other.scale) for (a,), b in zip(translated, expected, strict=True)
        )


def test_values_of_no_convention():
    bench = Bench(classifier(1.0), [normal(1, 12, 12, 3, seed=k) for k in range(4)])
    assert convention_of(bench.entry.ports, bench.rows) is None


def described(model, mean: float | None, std: float, stats: tuple[float, float] | None = None):
    """The model with TFLite Metadata: the normalization of its input, or its range of values."""
    builder = Builder()

    def numbers(value: float) -> int:
        return builder.numbers(np.array([value], np.float32))

    def table(*values: float) -> int:
        return put_table(builder, *((slot, OFFSET, place) for slot, place in enumerate([numbers(v) for v in values])))

    units = ranges = None
    if mean is not None:
        units = builder.tables([put_table(builder, (0, "B", 1), (1, OFFSET, table(mean, std)))])
    if stats is not None:
        ranges = table(stats[1], stats[0])
    tensor = put_table(builder, (4, OFFSET, units), (5, OFFSET, ranges))
    graph = put_table(builder, (2, OFFSET, builder.tables([tensor])))
    content = bytes(builder.finish(put_table(builder, (3, OFFSET, builder.tables([graph]))), b"M001"))
    model.metadata.append((NAME, Buffer(np.frombuffer(content, np.uint8))))
    return model


@pytest.mark.parametrize(
    ("stated", "remedy"),
    [
        ((127.5, 127.5), "scale=0.0078431, offset=-1"),
        ((0.0, 255.0), None),
        ((0.0, 1.0), None),  # what tools fill in
        ((None, 1.0, (-1.0, 1.0)), "scale=0.0078431, offset=-1"),
        ((None, 1.0, (0.0, 255.0)), "no scale= and no offset="),
        ((None, 1.0, (0.0, 1.0)), None),
    ],
)
def test_metadata_decide(digits, images, stated, remedy):
    findings = found(described(load(digits), *stated), images)
    assert (remedy is None) == (findings == {})
    assert remedy is None or remedy in findings["other_normalization"]


def test_an_unsure_model_and_one_class():
    """A softmax of nearly equal scores, of values that follow no convention."""
    net = Net()
    flat = net("RESHAPE", [net.input(1, 12, 12, 3), np.array([1, 432], np.int32)], (1, 432))
    scores = net.dense(flat, normal(5, 432, spread=1e-4), np.array([0.3, 0, 0, 0, 0], np.float32))
    model = net.model(net("SOFTMAX", [scores], beta=1.0))
    findings = found(model, [normal(1, 12, 12, 3, seed=k) for k in range(COUNT)])
    assert "100% of the samples the same class, its certainty is 2" in findings["one_class"]


def detector(bias: float):
    """Whether the sum of 16 numbers exceeds `bias`, as a probability."""
    net = Net()
    sums = net.dense(net.input(1, 16), np.ones((1, 16), np.float32), np.array([-bias], np.float32))
    return net.model(net("LOGISTIC", [sums], (1, 1)))


@pytest.mark.parametrize("bias", [-60.0, 60.0, 2000.0])
def test_samples_to_which_a_detector_always_gives_the_same_answer(bias):
    """A wake word that no recording contains: whatever becomes of the model, its outputs would look exact."""
    samples = [normal(1, 16, seed=k) for k in range(COUNT)]
    model = detector(bias)
    assert "for all samples: they do not show" in found(model, samples)["silent_outputs"]
    assert zeropoint.quantize(model, data=samples).verdict.level == "doubtful"
    other = np.full((1, 16), bias / 16, np.float32)
    assert "silent_outputs" not in found(model, [*samples, other])


def test_far_samples_are_noticed_where_not_all_are_held(digits, images):
    samples = [*images[:30], 1000 * images[30]]
    bench = Bench(load(digits), samples, Settings(histograms=False), judged=0)
    finding, loud = check_samples(bench)
    assert finding.check == "far_samples"
    assert loud.seen.startswith("sample 30 drives")
    assert "the first 24 up to 1" in finding.seen


def test_many_classes():
    net = Net()
    scores = net.dense(net.input(1, 4), normal(70_000, 4, spread=3.0))
    model = net.model(net("SOFTMAX", [scores], beta=1.0))
    assert found(model, samples_for(model, COUNT)) == {}


def test_several_inputs_that_are_constant_in_part():
    """A mask of ones is no mistake as long as another input varies."""
    net = Net()
    first, mask = net.input(1, 16), net.input(1, 16)
    model = net.model(net("MUL", [first, mask]))
    samples = [(normal(1, 16, seed=k), np.ones((1, 16), np.float32)) for k in range(COUNT)]
    assert found(model, samples) == {}
    assert list(found(model, [(mask, mask) for _, mask in samples])) == ["constant_samples"]
