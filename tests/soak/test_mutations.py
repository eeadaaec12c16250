"""Damaged models: always the same for a seed, and fields that are changed leave a flatbuffer that can be read."""

from __future__ import annotations

import numpy as np

from tools.soak.campaigns import Jobs, Load
from tools.soak.corpus import corpus
from tools.soak.mutations import damage, rearrange
from zeropoint.errors import InvalidModel
from zeropoint.tflite import load, to_bytes

from .. import build


def test_a_case_is_the_same_each_time():
    for campaign in (Load(seed=4), Jobs(seed=4)):
        assert [campaign.mutant(case) for case in range(12)] == [campaign.mutant(case) for case in range(12)]
    assert Load(seed=4).mutant(1) != Load(seed=5).mutant(1)


def test_damaged_bytes_and_fields_differ_from_the_intact_file():
    content = to_bytes(build.float_cnn())
    made = [rearrange(content, np.random.default_rng(seed)) for seed in range(60)]
    written = [m for m in made if m is not None]
    assert len(written) > 40
    assert sum(m != content for m in written) > 40
    assert all(damage(content, kind, np.random.default_rng(kind)) != content for kind in range(8))


def test_changed_fields_reach_the_reader():
    """Half of them are read: they get past the reader, which damaged bytes seldom do."""
    content, read = to_bytes(build.float_cnn()), 0
    for seed in range(60):
        try:
            load(rearrange(content, np.random.default_rng(seed)) or b"")
        except InvalidModel:
            continue
        read += 1
    assert read > 20


def test_jobs_take_what_can_be_read():
    for case in range(12):
        load(Jobs(seed=1).mutant(case))


def test_the_corpus_is_small_and_can_be_read():
    files = corpus()
    assert len(files) > 200
    assert max(map(len, files)) < 1 << 16
    for content in files[::9]:
        load(content)


def test_a_folder_takes_the_place_of_the_corpus(tmp_path):
    content = to_bytes(build.float_cnn())
    (tmp_path / "model.tflite").write_bytes(content)
    (tmp_path / "notes.txt").write_text("none")
    assert corpus(str(tmp_path)) == [content]
