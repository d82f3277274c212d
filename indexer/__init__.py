"""WHICH WORKER HOLDS WHICH PREFIX BLOCK.

One step of the way of a KV event is one file: `adapters` decode an engine's frames, `sequencer` keeps their
order, `keys` turns engine hashes into ours, `radix` maps those to workers; `feed` is all of it without I/O.
`predicted` holds what the gateway's own decisions let expect. Only `subscriber` reaches sockets and the loop.
"""
