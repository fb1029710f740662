"""A search in a process group of its own, to be killed: ``python search_killed.py FOLDER JSON``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import search_fakes

from tadnn.search import search


def main():
    changes = json.loads(sys.argv[2])
    spec = search_fakes.make_spec(Path(sys.argv[1]), **changes)
    pause = float(os.environ["TADNN_TEST_PAUSE"])
    evaluator = search_fakes.make_evaluator(spec, pause_s=pause)
    search(
        spec, evaluator, {"deep": "x"}, search_fakes.FACTS, setup="search_fakes:worker_evaluator"
    )


if __name__ == "__main__":
    main()
