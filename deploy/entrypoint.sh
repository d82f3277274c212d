#!/bin/sh
# Inside a container loopback reaches nobody: with an admin key the admin port listens on every address,
# without one it stays on loopback, where only `docker exec` finds it.
set -eu
if [ -n "${KVGATE_ADMIN_API_KEY:-}" ]; then
  export KVGATE_ADMIN_HOST="${KVGATE_ADMIN_HOST:-0.0.0.0}"
fi
exec kvgate "$@"
