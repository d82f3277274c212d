"""THE DECISION CORE: workers, loads, overlap, choice, booking. `routing.RoutingCore` is its face.

No sockets, files, event loop, threads or clock: time comes in as `now`, chance from a seed.
"""
