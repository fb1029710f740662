"""What every test shares."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Set before torch, NumPy and their OpenMP pools start, and inherited by child processes:
# tests of several workers must not fight over cores.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"

Require = Callable[[bool, str], None]


def require(present: bool, what: str) -> None:
    """Skip the test where ``what`` is missing; fail instead where CI promised that it is there."""
    if present:
        return
    if os.environ.get("TADNN_REQUIRE_SERVICES") == "1":
        pytest.fail(f"{what} is missing, and TADNN_REQUIRE_SERVICES=1 demands it")
    pytest.skip(f"{what} is missing")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked ``gpu`` where torch sees none."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(name="require")
def _require() -> Require:
    return require


@pytest.fixture
def shared_data(require: Require) -> Path:
    """The folder of public measurement tables beside the checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    # Optional even in CI: the tables are not part of the project.
    if not folder.is_dir():
        pytest.skip("the public measurement tables (../shared/data) are missing")
    return folder


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Undo what a test did to torch's thread count, without importing torch for its sake."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
