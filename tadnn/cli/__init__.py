"""The command line: parse, call, print."""

from tadnn.cli.main import main

__all__ = ["main"]
