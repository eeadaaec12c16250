"""Everything that is printed can be held back, and what was redirected comes back."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings

from zeropoint.streams import captured, quiet_stderr, unredirected


def shout(text: str) -> None:
    """By every way there is."""
    print(f"{text} print")
    print(f"{text} error", file=sys.stderr)
    os.write(1, f"{text} native\n".encode())
    os.write(2, f"{text} native error\n".encode())


def test_everything_is_captured_and_nothing_seen(capfd):
    with captured() as found:
        shout("one")
        warnings.warn("one warning", stacklevel=1)
    assert capfd.readouterr() == ("", "")
    for what in ("print", "error", "native", "native error", "warning"):
        assert any(f"one {what}" in line for line in found)
    shout("two")
    out, err = capfd.readouterr()
    assert "two print" in out
    assert "two native" in out
    assert "two native error" in err
    assert "one" not in out + err


def test_what_was_printed_before_a_failure_is_there(capfd):
    with contextlib.suppress(KeyError), captured() as found:
        shout("last words")
        raise KeyError
    assert "last words native error" in found
    assert capfd.readouterr() == ("", "")


def test_loggers_that_kept_the_stream_go_on(capsys):
    with captured() as found:
        handler = logging.StreamHandler()
        logger = logging.getLogger("kept")
        logger.addHandler(handler)
        logger.warning("inside")
    try:
        logger.warning("outside")
        with captured() as again:
            logger.warning("inside again")
    finally:
        logger.removeHandler(handler)
    assert (found, again) == (["inside"], ["inside again"])
    assert capsys.readouterr().err == "outside\n"


def test_one_inside_the_other(capfd):
    with captured() as outer:
        with quiet_stderr():
            os.write(2, b"unheard\n")
        with captured() as inner:
            os.write(2, b"inner\n")
        os.write(2, b"outer\n")
    assert (outer, inner) == (["outer"], ["inner"])
    assert capfd.readouterr() == ("", "")


def test_threads_take_turns(capfd):
    found: dict[int, list[str]] = {}

    def work(number: int) -> None:
        with captured() as printed:
            os.write(2, f"{number}\n".encode())
        found[number] = printed

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: [str(k)] for k in range(8)}
    os.write(2, b"seen\n")
    assert capfd.readouterr() == ("", "seen\n")


def test_what_has_to_be_seen_waits_for_other_threads(capfd):
    begun, end = threading.Event(), threading.Event()

    def hold_back() -> None:
        with quiet_stderr():
            begun.set()
            end.wait()

    other = threading.Thread(target=hold_back)
    other.start()
    begun.wait()
    threading.Timer(0.05, end.set).start()
    with unredirected():
        os.write(2, b"seen")
    other.join()
    assert capfd.readouterr().err == "seen"
