"""Every command of ``tadnn``; what each does is imported when it runs."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="tadnn",
    help="Find neural networks that fit the hardware they will run on.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# They add their commands, in the order in which --help lists them.
from tadnn.cli import listing  # isort: skip  # noqa: E402, F401
from tadnn.cli import learning  # isort: skip  # noqa: E402, F401
from tadnn.cli import predicting  # isort: skip  # noqa: E402, F401
from tadnn.cli import adapting  # isort: skip  # noqa: E402, F401
from tadnn.cli import screen  # isort: skip  # noqa: E402, F401
from tadnn.cli import study  # isort: skip  # noqa: E402, F401
from tadnn.cli import proxies  # isort: skip  # noqa: E402, F401
from tadnn.cli import tail  # isort: skip  # noqa: E402, F401
from tadnn.cli import sweep  # isort: skip  # noqa: E402, F401
from tadnn.cli import browsing  # isort: skip  # noqa: E402, F401
