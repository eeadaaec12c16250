"""The command `zeropoint`, and `python -m zeropoint`. Installs the Ctrl-C handling before importing anything else."""

INTERRUPTED = 130


def run() -> None:
    """Run the command line."""
    try:
        from .cli import main

        main()
    except KeyboardInterrupt:  # while modules were being imported
        _leave("interrupted; no file was left half-written\n")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _leave("")
        raise


def _leave(message: str) -> None:
    """Exit at once: threads may be busy, and an interrupt during native code would otherwise end Python by the
    signal."""
    import atexit
    import os
    import signal
    import sys

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stderr.write(message)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    atexit._run_exitfuncs()  # end child processes as well
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    run()
