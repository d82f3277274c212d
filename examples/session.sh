#!/usr/bin/env bash
# A first look with curl, while `make run` runs in another terminal: the same prompt twice, and why it went
# where it went. GATEWAY and ADMIN name other addresses, MODEL another model.
set -euo pipefail

gateway=${GATEWAY:-http://localhost:8000}
admin=${ADMIN:-http://localhost:9190}
model=${MODEL:-mock}

# Long enough for several KV blocks: prefixes are shared in whole blocks.
document=$(printf 'Paragraph %s of the handbook says that the valve closes before the pump starts. ' {1..60})

ask() {
  curl -sS -D - "$gateway/v1/chat/completions" -H 'content-type: application/json' -d @- <<JSON |
{"model": "$model", "max_tokens": 8,
 "messages": [{"role": "system", "content": "$document"}, {"role": "user", "content": "$1"}]}
JSON
    grep -io -e 'x-kvgate-worker: .*' -e '"cached_tokens": *[0-9]*'
}

policy() {
  curl -sS -o /dev/null -X PUT "$admin/policy" -d "{\"policy\": \"$1\"}"
}

echo "--- what is served"
curl -sS "$gateway/v1/models"; echo
echo "--- the first question"
ask "Which starts first?"
echo "--- another on the same text goes to the worker that holds it"
ask "What closes before the pump starts?"
echo "--- why"
curl -sS "$admin/explain?limit=1" | grep '"text"'
echo "--- the fleet: worker, trust, blocks in its index"
curl -sS "$admin/workers" | grep -E '^      "id"|"level"|"num_blocks_stored"'
echo "--- under round_robin the next goes elsewhere, and nothing is cached there"
policy round_robin
ask "And what comes last?"
policy kv
