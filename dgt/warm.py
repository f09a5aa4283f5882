"""Imported once by the forkserver, which then forks every rank: what ranks need is already there.

The launcher starts the forkserver with Ctrl-C ignored, so that it is not hit in the middle of these imports. From
here on its children take the default: a rank ends at once and silently, at whatever point of its start it is.
"""

import signal

import dgt.cli
import dgt.training.compare
import dgt.training.jobs  # noqa: F401

signal.signal(signal.SIGINT, signal.SIG_DFL)
