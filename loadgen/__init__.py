"""TRAFFIC, MOCK WORKERS, COMPARISON.

`engine` models an inference engine without I/O; `mock_worker` and what begins with `mock_` put sockets around
it. The rest makes workloads, sends them and compares what came back. The gateway never imports this package.
"""
