"""What an effort takes of processor and memory."""

from __future__ import annotations

from benchmarks import efforts


def test_every_network_is_measured(capsys, monkeypatch):
    monkeypatch.setattr(efforts, "apart", lambda function, *given: function(*given))
    monkeypatch.setattr(efforts, "INPUTS", 64)
    assert efforts.main(["--only", "dense", "convolutions", "--samples", "3", "--effort", "quick"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [line.split()[0] for line in lines[-2:]] == ["dense", "convolutions"]
    assert all(line.split()[-1] == "MB" for line in lines[-2:])


def test_the_layers_are_as_wide_as_they_are_said_to_be():
    (first, *_, last) = efforts.wide_convolutions().main.ops
    assert first.inputs[1].shape[1:] == last.inputs[1].shape[1:] == (1, 32, 256)
    assert efforts.wide_dense().main.ops[-1].inputs[1].shape == (128, 8192)
