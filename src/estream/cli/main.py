"""The command ``estream``, before anything large is imported: standard streams, signals, and the last guard."""

from estream.cli import guard, signals, streams


def main() -> None:
    """Run the command line; the entry point of the console script."""
    streams.repair()
    guard.run(_commands)


def _commands() -> int:
    """Import what the commands need, which takes most of a second, and run one; returns the exit status."""
    with signals.ending_at_once():
        from estream.cli.app import run
    with signals.as_interrupts():
        return run()
