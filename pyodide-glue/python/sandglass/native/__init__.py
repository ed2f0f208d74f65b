"""The guest on a host: a process that speaks crates/core/src/protocol.rs over a socket.

- `guest.py`          takes requests, runs exchanges on the main thread, and answers; owns the threads
- `bridge.py`         the current exchange: its clock, its waits and its end, as a `Bridge`
- `channel.py`        sends the guest's messages, in frames of `frames.py`
- `pipes.py`          file descriptors 1 and 2: output of child processes and C code
- `host_loop.py`      the event loop of cells, which also waits for pipes, sockets and processes
- `leftovers.py`      ends the threads and processes that a cell left running
- `changed_files.py`  finds the files that an execution changed
- `zygote.py`         a process that has imported libraries and forks guests
- `forks.py`          forks shadows of a guest
- `recorder.py`       notes what clocks and chance answer to an execution, for a later run of it
- `recorded_guest.py` the guest whose executions are recorded
- `kernel_guest.py`   the guest in a Jupyter kernel, in an interpreter that it shares with others
- `delimiter.py`      stateless runs over stdin and stdout, for clients attached to a container
- `container.py`      the first process of a container;  `landlock.py`, `rlimits.py` confine and bound a process
"""
