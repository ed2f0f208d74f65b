"""The user's variables outside of their interpreter: saved by value, and found when they cannot be saved.

- `state.py`      `State`, the methods for a backend: save, load, describe
- `by_value.py`   one pickle of all variables, for an interpreter of the same build;  `pickling.py` writes the objects
- `stateless.py`  the state between stateless runs: an LZ4 frame of a cloudpickle, which other servers read, too
- `portable/`      portable states: for other machines, versions of Python and backends, as values and source
- `lz4_frame.py` the same frames without the package `lz4`
- `cell_files.py` the files that describe a notebook's cell
- `foreign.py`    finds objects that a copy of the interpreter's memory cannot hold
"""
