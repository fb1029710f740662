#!/usr/bin/env bash
# Fetch what a GPU machine without a network may lack into benchmarks/wheels: Python 3.12, Linux.
# torch, numpy and matplotlib are expected there; gpu_check.sh unpacks only what is missing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
out=${1:-$here/wheels}
packages=(
  lightgbm optuna sqlalchemy alembic mako markupsafe colorlog cloudpickle pydantic pydantic-core
  annotated-types typing-inspection typing-extensions pyyaml tqdm packaging greenlet
  typer click shellingham rich markdown-it-py mdurl pygments annotated-doc
  filelock psutil safetensors threadpoolctl scipy pillow
  pytest iniconfig pluggy
)
mkdir -p "$out"
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
grep -v '^torch==' "$here/../constraints.txt" >"$constraints"
for package in "${packages[@]}"; do
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --platform manylinux_2_12_x86_64 --platform manylinux2010_x86_64 --platform any \
    --constraint "$constraints" --dest "$out" "$package"
done
size=$(du -sm "$out" | cut -f1)
echo "$(find "$out" -name '*.whl' | wc -l) wheels, $size MiB, in $out"
((size < 64)) || { echo "more than 64 MiB can't be carried" >&2; exit 1; }
