"""Portable states: variables as bytes that cross machines, versions of Python and backends. Without pickle where it can be.

The format is described in docs/checkpoint-format.md.

- `layout.py`        the bytes: a head, and objects that follow it
- `graph.py`         the graph of values within an object: atoms, references, and paths between nodes
- `writing.py`, `reading.py`  the two directions
- `codecs.py`        how each type of the standard library goes; `names.py` what goes by its name
- `functions.py`     functions as source;  `classes.py`, `made_classes.py` classes and their instances
- `arrays.py`, `frames.py`    NumPy and pandas
- `pickles.py`       the last resort: a pickle for the same Python and packages
"""

from sandglass.state.portable.layout import MAGIC, describe
from sandglass.state.portable.reading import read
from sandglass.state.portable.writing import write

__all__ = ["MAGIC", "describe", "read", "write"]
