"""Processes that a test interrupts, however the suite was started."""

import signal
import subprocess


def popen(*arguments, **options) -> subprocess.Popen:
    """Start a process that Ctrl-C ends. A suite in the background of a script, or under nohup, ignores SIGINT, and
    hands that down to each process that does not say otherwise. POSIX alone."""
    return subprocess.Popen(*arguments, **options, preexec_fn=heed)


def heed() -> None:
    """Give SIGINT its default action; for preexec_fn."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # from which Python makes KeyboardInterrupt
