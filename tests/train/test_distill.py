"""Training without labels and with them, from Python and from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import zeropoint
from zeropoint.demo import accuracy, digits
from zeropoint.errors import InvalidRecipe, InvalidSample
from zeropoint.ops import OPS, KernelSpec
from zeropoint.tflite.provenance import recorded
from zeropoint.train import Goal, QuantSettings, Schedule, distill, trainable
from zeropoint.train.backend import array_of
from zeropoint.train.checkpoint import StateCheck
from zeropoint.train.distillation import Distiller
from zeropoint.train.loop import KeepBest, TrainingSummary, WeightEma
from zeropoint.train.training_data import Augmentation, RandomBatches, TrainingData, mixed, shifted, unmixed

from ..nets import Net, normal, samples_for


@pytest.fixture(scope="module")
def images():
    return digits()


@pytest.fixture(scope="module")
def model(digits):
    return zeropoint.load(digits)


def test_two_bits_become_useful_without_labels(model, images):
    """Rounded to three levels, the network guesses; its float self teaches it otherwise."""
    samples = [x[None] for x in images["calibration"]]
    settings, schedule = QuantSettings(weight_bits=2), Schedule(150, 32, 3e-3)
    first = distill(model, samples, settings=settings, schedule=Schedule(1, 32, 1e-9))
    taught = distill(model, samples, settings=settings, schedule=schedule)
    assert taught.training.best < 0.5 * taught.training.before
    assert taught.training.history[0] == (0, taught.training.before)
    assert accuracy(taught.result.model, images) > accuracy(first.result.model, images)
    assert any("held-back" in note for note in taught.result.notes)


def test_weights_of_few_bits_come_to_rest_on_integers(model, images):
    samples = [x[None] for x in images["calibration"]]
    taught = distill(model, samples, weight_bits=4, schedule=Schedule(40, 32, 1e-3))
    assert taught.trained.blueprint.settings.settle == 32
    batch = images["calibration"][:16]
    rounded, sloping = (array_of(taught.trained(batch, training=training)) for training in (False, True))
    assert np.abs(rounded - sloping).max() < 0.05 * np.abs(rounded).max()
    assert distill(model, samples, schedule=Schedule(2, 32)).trained.blueprint.settings.settle == 0
    three = QuantSettings(weight_bits=3)
    assert distill(model, samples, settings=three, schedule=Schedule(10, 32)).trained.blueprint.settings.settle == 0


def test_training_never_ends_worse_than_it_began(model, images):
    """A learning rate that wrecks the network: the state before training is the best one."""
    samples = [x[None] for x in images["calibration"][:40]]
    wrecked = distill(model, samples, schedule=Schedule(5, 16, 10.0))
    assert wrecked.training.best_step == 0
    wanted = zeropoint.quantize(model, data=samples)
    made, wanted = (recorded(result.model, None) for result in (wrecked.result, wanted))  # but how it was made
    assert zeropoint.to_bytes(made) == zeropoint.to_bytes(wanted)


def test_what_training_started_from_is_kept_beside_the_result(model, images):
    samples = [x[None] for x in images["calibration"]]
    found = distill(model, samples, weight_bits=4, schedule=Schedule(1, 32, 1e-9))
    assert found.training.best_step == 0
    constants = [[t.data for t in made.model.main.tensors if t.is_constant] for made in (found.result, found.start)]
    for trained, before in zip(*constants, strict=True):
        np.testing.assert_array_equal(trained, before)


def test_an_interruption_keeps_the_best_so_far(model, images):
    def progress(step: int, loss: float) -> None:
        if step == 3:
            raise KeyboardInterrupt

    samples = [x[None] for x in images["calibration"][:40]]
    stopped = distill(model, samples, schedule=Schedule(50, 16, 1e-3, checks=50), progress=progress)
    assert stopped.training.interrupted
    assert stopped.training.steps == 3
    assert [step for step, _ in stopped.training.history] == [0, 1, 2, 3]  # the present state counts as well
    assert zeropoint.to_bytes(stopped.result.model)


def test_labels_and_inner_tensors_count(model, images):
    pairs = [(x[None], y) for x, y in zip(images["test_images"][:96], images["test_labels"][:96], strict=True)]
    goal = Goal(inner=("CONV_2D",), loss="sparse_categorical_crossentropy", teacher=0.3)
    found = distill(model, pairs, schedule=Schedule(20, 32, 1e-3), settings=QuantSettings(weight_bits=3), goal=goal)
    assert found.training.best < found.training.before


def test_a_graph_with_a_fixed_batch_is_trained_sample_by_sample():
    net = Net()
    y = net("MEAN", [net.dense(net.input(2, 4), normal(3, 4)), np.array([0], np.int32)], (1, 3), keepDims=True)
    model = net.model(y)
    assert distill(model, samples_for(model, 12), schedule=Schedule(3, 8)).training.steps == 3


def test_refusals_say_what_to_do(model, images):
    samples = [x[None] for x in images["calibration"][:8]]
    with pytest.raises(InvalidRecipe, match="no loss 'nonesuch'"):
        distill(model, [(x, 0) for x in samples], steps=1, goal=Goal(loss="nonesuch"))
    with pytest.raises(InvalidRecipe, match="settle over zero or more steps"):
        QuantSettings(settle=-1)
    with pytest.raises(InvalidRecipe, match="no op inside"):
        distill(model, samples, steps=1, goal=Goal(inner=("nonesuch",)))
    with pytest.raises(InvalidSample, match="pair of inputs and labels"):
        distill(model, samples, steps=1, goal=Goal(loss="mse"))
    with pytest.raises(InvalidSample, match="at least two samples"):
        distill(model, samples[:1], steps=1)
    with pytest.raises(InvalidRecipe, match="at least one step"):
        Schedule(0)


def test_the_student_is_built_once(model, images, monkeypatch):
    from zeropoint.train import fake_quant_graph

    built = []
    of = fake_quant_graph.FakeQuantGraph.of
    monkeypatch.setattr(
        fake_quant_graph.FakeQuantGraph,
        "of",
        classmethod(lambda _, blueprint, add: built.append(blueprint.quantize) or of(blueprint, add)),
    )
    distill(model, [x[None] for x in images["calibration"][:8]], schedule=Schedule(1, 4))
    assert built == [True, False]  # the student and its teacher


def test_another_op_table_is_distilled_by(model, images):
    without = {**OPS, "SOFTMAX": replace(OPS["SOFTMAX"], kernels=KernelSpec(note="just to see"))}
    samples = [x[None] for x in images["calibration"][:8]]
    found = distill(model, samples, schedule=Schedule(1, 4), ops=without)
    assert [s.reason for s in found.result.skipped] == ["just to see"]
    assert found.result.model.main.ops[-1].kind == "SOFTMAX"


def test_images_are_shifted_with_their_border_repeated():
    rng = np.random.default_rng(0)
    images = np.arange(2 * 5 * 6 * 1, dtype=np.float32).reshape(2, 5, 6, 1)
    moved = shifted(images, (2, 2), rng)
    down, across = np.random.default_rng(0).integers(-2, 3, (2, 2, 1))[:, :, 0]
    for k in range(2):
        rows, columns = np.clip(np.arange(5) + down[k], 0, 4), np.clip(np.arange(6) + across[k], 0, 5)
        np.testing.assert_array_equal(moved[k], images[k][rows][:, columns])
    with pytest.raises(InvalidRecipe, match="zero or more pixels"):
        Schedule(shift=-1)


def test_images_can_be_shifted_in_one_direction_alone():
    images = np.arange(20 * 5 * 6, dtype=np.float32).reshape(20, 5, 6, 1)
    moved = shifted(images, (2, 0), np.random.default_rng(0))
    allowed = [np.clip(np.arange(5) + down, 0, 4) for down in range(-2, 3)]
    found = [[(new == old[rows]).all() for rows in allowed] for new, old in zip(moved, images, strict=True)]
    assert (np.sum(found, axis=1) == 1).all()  # each is one of them
    assert np.any(found, axis=0).all()  # and all occur
    assert Schedule(shift=3).shifts == (3, 3)
    with pytest.raises(InvalidRecipe, match="zero or more pixels"):
        Schedule(shift=(2, -1))


def test_only_images_are_shifted():
    net = Net()
    model = net.model(net.dense(net.input(1, 4), normal(3, 4)))
    with pytest.raises(InvalidRecipe, match="only images"):
        distill(model, samples_for(model, 12), schedule=Schedule(3, 8, shift=1))


def test_mixtures_lie_between_two_samples_and_the_same_in_all_inputs():
    images, more = np.zeros((8, 5, 6, 3), np.float32), np.zeros((8, 2), np.float32)
    images += np.arange(8, dtype=np.float32).reshape(-1, 1, 1, 1)
    more += np.arange(8, dtype=np.float32)[:, None]
    found = mixed((images, more), 1.0, np.random.default_rng(0))
    assert np.ptp(found[0], axis=(1, 2, 3)).max() < 1e-5
    np.testing.assert_allclose(found[0][:, 0, 0, 0], found[1][:, 0], atol=1e-5)
    assert len(np.unique(found[1][:, 0])) > 6
    assert 0 <= found[1].min() <= found[1].max() <= 7
    np.testing.assert_array_equal(mixed((images,), 0.0, np.random.default_rng(0))[0], images)


def test_only_numbers_without_labels_are_mixed():
    net = Net()
    model = net.model(net.dense(net.input(1, 4), normal(3, 4)))
    samples = samples_for(model, 12)
    assert distill(model, samples, schedule=Schedule(2, 8, mix=0.5)).training.steps == 2
    with pytest.raises(InvalidRecipe, match="have no labels"):
        distill(model, [(row[0], 0.0) for row in samples], goal=Goal(loss="mse"), schedule=Schedule(2, 8, mix=1.0))
    with pytest.raises(InvalidRecipe, match="cannot be mixed"):
        mixed((np.zeros((2, 3), np.int32),), 0.5, np.random.default_rng(0))
    with pytest.raises(InvalidRecipe, match="between 0 and 1"):
        Schedule(mix=2.0)


def test_labels_count_for_samples_that_are_not_mixed():
    """They come first in a batch; when a state is checked, nothing is mixed, and all labels count."""
    net = Net()
    model = net.model(net.dense(net.input(1, 4), normal(3, 4)))
    samples = samples_for(model, 12)
    pairs = [(row[0], row[0][:, :3]) for row in samples]
    goal = Goal(loss="mse", teacher=0.0)
    assert distill(model, pairs, goal=goal, schedule=Schedule(2, 8, mix=0.5)).training.steps == 2
    made = Distiller.of(trainable(model, stats=zeropoint.calibrate(model, samples)).blueprint, goal)
    made.labelled = unmixed(4, 0.5)
    labels, outputs = np.zeros((4, 3), np.float32), np.arange(4, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    losses = [float(made.compute_loss(y=labels, y_pred=[outputs, outputs], training=t)) for t in (True, False)]
    np.testing.assert_allclose(losses, [1 / 2, 14 / 4])


def test_a_weight_that_swings_is_on_average_in_the_middle():
    average = WeightEma([np.zeros(2, np.float32), np.array(7)])
    for step in range(1, 1001):
        average.add([np.array([step % 2, 3.0], np.float32), np.array(step)])
    swinging, steady = average.state[0]
    assert swinging == pytest.approx(0.5, abs=0.02)
    assert steady == pytest.approx(3.0, abs=1e-3)
    assert average.state[0].dtype == np.float32
    assert average.state[1] == 1000  # a counter is no weight


def test_labels_come_one_by_one_or_in_batches(model):
    one = TrainingData.of(model, [(np.zeros((8, 8, 1), np.float32), 3)] * 2, labelled=True)
    many = TrainingData.of(model, [(np.zeros((2, 8, 8, 1), np.float32), np.array([3, 3]))], labelled=True)
    for data in (one, many):
        inputs, labels = data.batch([0, 1])
        assert inputs[0].shape == (2, 8, 8, 1)
        assert labels.tolist() == [3, 3]


@pytest.fixture
def files(model, images, tmp_path):
    zeropoint.save(model, tmp_path / "digits.tflite")
    np.save(tmp_path / "samples.npy", images["calibration"][:60])
    np.savez(tmp_path / "pairs.npz", x=images["test_images"][:60], y=images["test_labels"][:60])
    (tmp_path / "data.py").write_text(
        "from pathlib import Path\nimport numpy as np\n\n\ndef pairs():\n"
        "    with np.load(Path(__file__).parent / 'pairs.npz') as file:\n"
        "        yield from zip(file['x'], file['y'])\n"
    )
    return tmp_path


def test_the_command_writes_a_trained_model(run, files):
    out = files / "out.tflite"
    command = ("train", files / "digits.tflite", "--data", files / "samples.npy", "-o", out, "--weight-bits", 4)
    code, printed, errors = run(*command, "--steps", 4, "--batch", 16, "--shift", "1,0", "--input-type", "uint8")
    assert code == 0, errors
    assert "held-back samples" in printed
    assert zeropoint.load(out).main.inputs[0].dtype is zeropoint.DType.UINT8
    code, _, errors = run(*command)
    assert code == 2
    assert "exists" in errors
    for wrong in ("-1", "1,2,3", "some"):
        code, _, errors = run(*command, "--overwrite", f"--shift={wrong}")
        assert code == 2
        assert "pixels" in errors


def test_the_command_takes_labels(run, files):
    out = files / "out.tflite"
    options = ("--data", f"{files / 'data.py'}:pairs", "-o", out, "--steps", 3, "--batch", 16)
    inner = ("--inner", "CONV_2D", "--inner-weight", 3)
    code, _, errors = run(
        "train", files / "digits.tflite", *options, *inner, "--loss", "sparse_categorical_crossentropy"
    )
    assert code == 0, errors
    assert out.is_file()
    code, _, errors = run("train", files / "digits.tflite", *options, "--overwrite", "--loss", "nonesuch")
    assert code == 2
    assert "nonesuch" in errors
    assert "Traceback" not in errors


def pairs_of(images, count=96):
    return [(x[None], y) for x, y in zip(images["test_images"][:count], images["test_labels"][:count], strict=True)]


def test_an_interruption_compares_the_present_state_with_the_start(model, images):
    """No check was reached yet: what was trained so far counts all the same."""

    def progress(step: int, loss: float) -> None:
        if step == 15:
            raise KeyboardInterrupt

    samples = [x[None] for x in images["calibration"]]
    settings = QuantSettings(weight_bits=2)
    found = distill(model, samples, settings=settings, schedule=Schedule(500, 32, 3e-3, checks=1), progress=progress)
    assert found.training.best_step == 15, str(found.training)
    assert "interrupted; the error on held-back samples fell" in str(found.training)


@pytest.mark.parametrize(
    ("label", "loss", "said"),
    [
        (99, "sparse_categorical_crossentropy", r"sample 0 is 99, and the model has 10 classes"),
        (np.eye(10)[3], "sparse_categorical_crossentropy", "one-hot labels use loss=.categorical_crossentropy"),
        (3, "categorical_crossentropy", r"shape of the output, \[10\], not \[\]"),
        (np.nan, "mse", "sample 0 is NaN"),
        ("seven", "mse", "labels must be numbers"),
        (np.zeros(7), "mse", "cannot be computed from these labels"),
    ],
)
def test_labels_are_checked_before_training(model, images, label, loss, said):
    pairs = [(x[None], label) for x in images["calibration"][:8]]
    with pytest.raises((InvalidSample, InvalidRecipe), match=said):
        distill(model, pairs, schedule=Schedule(5, 4), goal=Goal(loss=loss))


def test_inputs_that_are_no_numbers_are_refused_before_training(model, images):
    samples = [x[None].copy() for x in images["calibration"][:8]]
    samples[5][0, 2, 2, 0] = np.nan
    with pytest.raises(InvalidSample, match=r"sample 5, input .*: 1 values are NaN"):
        distill(model, samples, schedule=Schedule(5, 4))


def test_training_ends_at_the_step_where_the_loss_is_no_number(model, images):
    def loss(labels, outputs):
        return keras.ops.sqrt(
            keras.ops.mean(outputs) * 0 + 1 - keras.ops.cast(keras.ops.max(labels) > 7, "float32") * 2
        )

    pairs = [(x, 8 if k == 11 else 0) for k, (x, _) in enumerate(pairs_of(images, 20))]
    found = distill(model, pairs, schedule=Schedule(40, 1, 1e-3, checks=2), goal=Goal(loss=loss))
    assert 1 <= found.training.steps <= 16
    assert f"became nan at step {found.training.steps}" in str(found.training)
    assert all(np.isfinite(value).all() for value in map(array_of, found.trained.weights))


def test_a_rise_and_noise_are_said(model, images):
    summary = TrainingSummary(50, 1.0, 1.0, 0, ((0, 1.0), (50, 3.0)))
    assert "did not improve" in str(summary)
    assert "rose to 3" in str(summary)
    fell = TrainingSummary(50, 1.0, 0.5, 20, ((0, 1.0), (20, 0.5), (50, 0.75)))
    assert "fell from 1 to 0.5 at step 20 of 50, and rose to 0.75 after that" in str(fell)
    samples = [x[None] for x in images["calibration"][:12]]
    still = distill(model, samples, schedule=Schedule(2, 4, 1e-7))  # nothing can change
    assert still.training.best_step == 0


def test_metrics_judge_and_callbacks_are_called(model, images):
    """Metrics, losses, schedules and callbacks are Keras's own."""
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((epoch, sorted(logs)))

    goal = Goal(
        loss=keras.losses.SparseCategoricalCrossentropy(),
        metrics=("accuracy", keras.metrics.SparseTopKCategoricalAccuracy(3, name="top3")),
    )
    rate = keras.optimizers.schedules.ExponentialDecay(3e-3, 10, 0.9)
    schedule = Schedule(12, 16, rate, checks=3)
    settings = QuantSettings(weight_bits=2)
    found = distill(model, pairs_of(images), goal=goal, schedule=schedule, settings=settings, callbacks=[Watch()])
    names = ["accuracy", "agreement", "loss", "top3"]
    names += [f"val_{name}" for name in names]
    assert seen == [(0, names), (1, names), (2, names)]
    assert found.training.judge == "accuracy"
    assert 0 <= found.training.before <= found.training.best <= 1


def test_patience_ends_training(model, images):
    samples = [x[None] for x in images["calibration"][:24]]
    found = distill(model, samples, schedule=Schedule(100, 8, 10.0, checks=100, patience=2))
    assert found.training.steps < 20
    assert "no better error in 2 checks" in str(found.training)
    with pytest.raises(InvalidRecipe, match="at least one check"):
        Schedule(patience=0)


def test_a_run_goes_on_where_it_was_interrupted(model, images, tmp_path):
    state = tmp_path / "run.npz"
    samples = [x[None] for x in images["calibration"][:40]]
    settings, schedule = QuantSettings(weight_bits=2), Schedule(6, 16, 3e-3, checks=3)

    def stop(step: int, loss: float) -> None:
        if step == 3:
            raise KeyboardInterrupt

    first = distill(model, samples, settings=settings, schedule=schedule, resume=state, progress=stop)
    assert first.training.interrupted
    with pytest.raises(InvalidRecipe, match="other settings"):
        distill(model, samples, settings=settings, schedule=replace(schedule, seed=1), resume=state)
    steps = []
    rest = distill(
        model, samples, settings=settings, schedule=schedule, resume=state, progress=lambda step, _: steps.append(step)
    )
    assert steps == [3, 4, 5, 6]  # from the check after step 2 on
    assert rest.training.history[:2] == first.training.history[:2]
    assert not state.exists()
    state.write_bytes(b"something else")
    with pytest.raises(InvalidRecipe, match="not a saved training run"):
        distill(model, samples, settings=settings, schedule=schedule, resume=state)


def test_batches_follow_from_the_seed_and_the_step():
    data = TrainingData(tuple((np.full((1, 2), k, np.float32),) for k in range(10)))
    batches = RandomBatches(data, range(10), 4, 3, Augmentation())
    taken = [k for step in range(5) for k in batches.chosen(step)]
    assert sorted(taken[:10]) == sorted(taken[10:]) == list(range(10))
    assert batches.chosen(2) == taken[8:12]


def test_without_labels_the_choice_of_classes_counts_as_well():
    """A lower divergence that comes with other answers than the float model's is none to keep."""
    keeper = KeepBest(SimpleNamespace(goal=Goal()), Schedule(), None, None)
    keeper.first = StateCheck(1.0, (1.0,) * 4, {}, (0.95, 1.0, 0.9, 0.95))
    assert keeper._disagrees(StateCheck(0.5, (0.5,) * 4, {}, (0.8, 0.9, 0.8, 0.85)))
    assert not keeper._disagrees(StateCheck(0.5, (0.5,) * 4, {}, (0.96, 0.99, 0.9, 0.95)))


TRAIN_BRIEFLY = ("--steps", 2, "--batch", 8, "--effort", "quick")


def test_the_command_uses_no_more_samples_than_asked_for_and_prints_json(run, files):
    (files / "counting.py").write_text(
        "from pathlib import Path\nimport numpy as np\n\n\ndef samples():\n"
        "    for k, image in enumerate(np.load(Path(__file__).parent / 'samples.npy'), 1):\n"
        "        Path(__file__).with_name('count').write_text(str(k))\n        yield image\n"
    )
    options = ("--data", f"{files / 'counting.py'}:samples", "--limit", 24, "--json", "-o", files / "out.tflite")
    code, printed, errors = run("train", files / "digits.tflite", *options, *TRAIN_BRIEFLY)
    assert code == 0, errors
    assert 24 <= int((files / "count").read_text()) <= 25
    told = json.loads(printed)
    assert told["schema"] == 1
    assert told["bytes"] == (files / "out.tflite").stat().st_size < told["float_bytes"]
    assert told["verdict"]["level"] == "unknown"  # the few samples that are held back say little
    assert 0 < told["verdict"]["samples"] < 8
    assert told["verdict"]["held_back"] is None


def test_the_seed_of_the_command_decides_the_order(run, files):
    made = []
    for k, seed in enumerate((1, 1, 2)):
        options = ("--data", files / "samples.npy", "-o", files / f"{k}.tflite", "--seed", seed, "--learning-rate", 0.1)
        code, _, errors = run("train", files / "digits.tflite", *options, *TRAIN_BRIEFLY, "--weight-bits", 2)
        assert code == 0, errors
        made.append((files / f"{k}.tflite").read_bytes())
    assert made[0] == made[1] != made[2]


def test_the_command_takes_a_recipe(run, files):
    (files / "rules.toml").write_text('[[rules]]\nscheme = "int8"\n[[rules]]\nops = "MEAN"\nscheme = "float"\n')
    options = ("--data", files / "samples.npy", "-o", files / "out.tflite", "--recipe", files / "rules.toml")
    code, printed, errors = run("train", files / "digits.tflite", *options, *TRAIN_BRIEFLY)
    assert code == 0, errors
    assert "MEAN: the recipe keeps it in float" in printed
    code, _, errors = run("train", files / "digits.tflite", *options, "--mode", "int8", "--overwrite")
    assert code == 2
    assert "a recipe, or a mode" in errors


def test_the_command_can_be_strict(run, files):
    options = ("--data", files / "samples.npy", "-o", files / "out.tflite", "--keep-float", "MEAN", "--strict")
    code, _, errors = run("train", files / "digits.tflite", *options, *TRAIN_BRIEFLY)
    assert code == 2
    assert "MEAN" in errors
    assert not (files / "out.tflite").exists()
