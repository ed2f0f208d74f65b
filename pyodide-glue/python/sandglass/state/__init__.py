"""The user's variables outside of their interpreter: saved by value, and what cannot be saved.

- `state.py`      `State`, what a backend asks: save, load, describe
- `by_value.py`   one pickle of all variables, for an interpreter of the same build;  `pickling.py` how they are written
- `stateless.py`  what one stateless run hands to the next: an LZ4 frame of a cloudpickle, which other servers read, too
- `cell_files.py` the files that describe a notebook's cell
- `foreign.py`    what a copy of the interpreter's memory cannot hold
"""
