"""With `measure`, several ways to place the ops are timed and one of them is taken; the note says what each took."""

from __future__ import annotations

import pytest

import zeropoint
from zeropoint.errors import InvalidRecipe

from ..nets import Net, normal, samples_for


def test_the_fastest_way_is_taken() -> None:
    net = Net()
    x = net.conv(net.input(1, 16, 16, 8), normal(8, 3, 3, 8))
    model = net.model(net.conv(net("HARD_SWISH", [x]), normal(4, 3, 3, 8, seed=1)))
    result = zeropoint.quantize(model, data=samples_for(model, 8), effort="quick", measure=True)
    (note,) = [note for note in result.notes if "timed on this machine" in note]
    assert "by the table" in note
    assert "integers wherever possible" in note
    assert "float " in note
    assert result.target.name == "cpu"
    with pytest.raises(InvalidRecipe, match="nothing to choose for the target integer"):
        zeropoint.quantize(model, data=samples_for(model, 8), target="integer", measure=True)
