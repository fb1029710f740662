"""The ``tadnn`` command: its errors and exit codes.

Exit codes: 0 done, 1 the work failed, 2 the request was wrong, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from tadnn.cli.app import app
from tadnn.errors import TadnnError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # In this mode typer raises what it would print, and returns the code of its own exits.
        result = app(args=words or ["--help"], prog_name="tadnn", standalone_mode=False)
    except KeyboardInterrupt:
        return _interrupted()
    except typer.TyperException as error:
        return _misused(error)
    except TadnnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if result == INTERRUPTED:  # typer's answer to Ctrl-C
        return _interrupted()
    return result if isinstance(result, int) else 0


def _misused(error: typer.TyperException) -> int:
    """Say in our form what typer has to say about the command, its options and arguments."""
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    command = "tadnn" if context is None else context.command_path
    print(f"error: {message.rstrip('.')} (see {command} --help)", file=sys.stderr)
    return int(error.exit_code)


def _interrupted() -> int:
    print("interrupted: what was finished is kept; the same command goes on", file=sys.stderr)
    return INTERRUPTED
