"""The guest on a host: a process that speaks crates/core/src/protocol.rs over a socket.

- `guest.py`          takes requests, runs exchanges on the main thread, answers; its threads
- `bridge.py`         the exchange under way: its clock, its waits and its end, as a `Bridge`
- `channel.py`        what the guest sends, in `frames.py`'s frames
- `pipes.py`          file descriptors 1 and 2: what child processes and C code print
- `host_loop.py`      the event loop of cells, which waits for pipes, sockets and processes as well
- `leftovers.py`      ends the threads and processes that a cell left running
- `changed_files.py`  which files an execution changed
- `zygote.py`         a process that has imported libraries and forks guests
- `forks.py`          copies of a guest that run code ahead
- `kernel_guest.py`   the guest in a Jupyter kernel, in an interpreter that is others' as well
- `delimiter.py`      stateless runs over stdin and stdout, for clients attached to a container
- `container.py`      the first process of a container;  `landlock.py`, `rlimits.py` confine and bound a process
"""
