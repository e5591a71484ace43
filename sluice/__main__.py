"""The script `sluice` and `python -m sluice`, for processes that start others with the same Python. It imports the command line last."""

import signal


def main() -> None:
    """Call the command. Until its module is imported, Ctrl-C ends the process at once, without a traceback: there is nothing to clean up,
    and libraries take a KeyboardInterrupt in an import for an error of the import."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # `sluice.cli.main` sets the handler again
    try:
        from sluice.cli.main import main as call

        call()
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


if __name__ == "__main__":
    main()
