"""Portable states: variables as bytes that cross machines, versions of Python and backends.

- `layout.py`        the bytes: a head, and objects that follow it
- `graph.py`         the graph of values within an object: atoms, references, and paths between nodes
- `writing.py`, `reading.py`  the two directions
- `codecs.py`        how each type of the standard library goes; `names.py` what goes by its name
- `functions.py`     functions as source;  `classes.py`, `made_classes.py` classes and their instances
- `arrays.py`, `frames.py`    NumPy and pandas
- `generators.py`    the global generators of random numbers, which are no variables
- `pickles.py`       the last resort: a pickle for the same Python and packages
"""

# The format: docs/checkpoint-format.md.
