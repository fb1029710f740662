"""The program of one worker process; it reads its job from stdin."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_GRACE_S = 5.0


def main() -> int:
    """Work on the study of the job read from stdin; the last line of stdout says how it ended."""
    job = json.loads(sys.stdin.buffer.readline())
    _die_with(job["parent"])
    threading.Thread(target=_watch_parent, daemon=True).start()
    sys.path[:] = list(dict.fromkeys([*sys.path, *job["import_path"]]))

    from tadnn.errors import TadnnError

    try:
        report = _work(job)
    except TadnnError as error:
        report = {"error": type(error).__name__, "message": str(error)}
    except KeyboardInterrupt:
        return 130
    print(json.dumps(report), flush=True)
    return 0


def _work(job: dict[str, Any]) -> dict[str, Any]:
    import optuna

    from tadnn.search.address import StorageAddress, storage_errors
    from tadnn.search.load import parse_spec
    from tadnn.search.runner import Worker
    from tadnn.search.spec import study_folder
    from tadnn.search.storage import study_lock

    spec = parse_spec(job["spec"])
    if job["path"] is not None:
        spec = spec.at(Path(job["path"]))
    module, _, function = job["setup"].partition(":")
    evaluator = getattr(importlib.import_module(module), function)(spec, job["latency_model"])
    address = StorageAddress.of(spec)
    with storage_errors(address.url):
        study = optuna.load_study(study_name=spec.name, storage=address.open(checked=True))
        lock = study_lock(study_folder(spec))
        ended = Worker(study, evaluator, lock, shared=address.path is None).run()
    return {"why": ended.why, "complete": ended.complete}


def _die_with(parent: int) -> None:
    """Have the kernel end this process with its parent, where the kernel can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It went between starting us and here.
        os._exit(1)


def _watch_parent() -> None:
    """Wait for the end of stdin: the parent let go, or is gone."""
    # The descriptor itself: a buffered reader's lock would stop the interpreter from ending.
    while os.read(0, 1):
        pass
    # As Ctrl-C: the trial is given back if that takes no long time.
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
