#!/usr/bin/env bash
# Check tadnn on a machine with a CUDA device, unattended, in under 8 minutes:
#   benchmarks/gpu_check.sh OUT [--rehearse fake|cpu]
# Needs Python >= 3.11 with torch >= 2.9 and no network; what else is missing is unpacked from
# benchmarks/wheels (see gpu_wheels.sh). docs/gpu.md describes what lands in OUT.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
exec "$python" "$here/gpu_check.py" "$@"
