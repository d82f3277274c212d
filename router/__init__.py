"""THE GATEWAY.

`core` decides and books, `wire` reads bytes, both without I/O. Around them stand the client's side (`server`,
`client_connection`), the worker's side (`upstream`, `worker_connection`), what joins them (`proxy`), and the
control plane (`admin`, `metrics`, `config`). `app` wires them up for `kvgate serve`.
"""
