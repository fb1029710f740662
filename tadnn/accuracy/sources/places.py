"""Where the files of a published data set are looked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tadnn.errors import DataError

#: The folder that holds a folder per data set.
DATA_VARIABLE = "TADNN_DATA"


def find_data_folder(
    name: str, what: str, advice: str, *, inner: str = "", system: Sequence[Path] = ()
) -> Path:
    """Return the folder of a published data set: what the user names wins over what is installed.

    Args:
        name: the folder's name in ``$TADNN_DATA`` and in ``./data``.
        what: the files that belong there, for messages.
        advice: another way to get them, for messages; may be empty.
        inner: the folder that the published archive unpacks to, if it does.
        system: folders of installed packages.

    Raises:
        DataError: none of the folders exists.
    """
    own = os.environ.get(DATA_VARIABLE)
    places = ([Path(own) / name] if own else []) + [Path("data") / name]
    for place in (*places, *system):
        if inner and (place / inner).is_dir():
            return place / inner
        if place.is_dir():
            return place
    searched = ", ".join(str(place.absolute()) for place in (*places, *system))
    raise DataError(
        f"the data set {name!r} is not here; {advice}put {what} into data/{name} in the working "
        f"directory or into ${DATA_VARIABLE}/{name}. Looked in: {searched}"
    )


def find_file(folder: Path, names: Sequence[str]) -> Path:
    """Return the first of ``names`` in ``folder``.

    Raises:
        DataError: none is there.
    """
    for name in names:
        if (folder / name).is_file():
            return folder / name
    also = f" (nor {', '.join(names[1:])})" if len(names) > 1 else ""
    raise DataError(f"no such file: {folder / names[0]}{also}")
