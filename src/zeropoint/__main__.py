"""The command `zeropoint`, and `python -m zeropoint`. It imports nothing before Ctrl-C is looked after."""

INTERRUPTED = 130


def run() -> None:
    """Run the command line."""
    try:
        from .cli import main

        main()
    except KeyboardInterrupt:  # while modules were loaded
        _leave("interrupted; no file was left half-written\n")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _leave("")
        raise


def _leave(message: str) -> None:
    """End at once: threads may be busy, and where Python was interrupted in native code it would end by the signal."""
    import atexit
    import os
    import signal
    import sys

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stderr.write(message)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    atexit._run_exitfuncs()  # child processes are to end, too
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    run()
