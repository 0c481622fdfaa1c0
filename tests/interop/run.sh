#!/bin/sh
# Checks that transformers loads what we write, and computes the same logits. Needs Python 3.10 or later and some 6 GB of disk:
# it installs transformers and torch from PyPI into a virtual environment, unless PYTHON names an interpreter that has them.
# Not part of continuous integration.
set -eu
cd "$(dirname "$0")/../.."
work="${TMPDIR:-/tmp}/monopass-interop"
mkdir -p "$work/checkpoints"
if [ -z "${PYTHON:-}" ]; then
    PYTHON="$work/venv/bin/python"
    [ -x "$PYTHON" ] || python3 -m venv "$work/venv"
    "$PYTHON" -m pip install --quiet transformers torch safetensors
fi
MONOPASS_INTEROP="$work/checkpoints" cargo test --quiet --test interop
"$PYTHON" tests/interop/compare.py "$work/checkpoints"
