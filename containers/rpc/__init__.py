"""The port `containers.engine.Engine` between two processes, with the types of `Engine` and `Callbacks`.

* `codec`: values of the port as JSON, by their type hints; errors with the trace of the other process.
* `connection`: requests and answers in both directions at once, with threads that wait. `socket_link`: over a Unix socket.
* `remote_engine`: the end of the agent, which is an `Engine`.
* `engine_server`: the end of the driver, which has one.

Only the standard library is needed. Both ends send their version first, and refuse another one.
"""
