"""A private copy of the builtins, taken before any user code ran.

A module that begins with `from sandglass.pristine import BUILTINS as __builtins__` gets it for all its functions (a
function takes its builtins from `__builtins__` of its globals when it is defined). So `builtins.len = None` in a cell
breaks the cell, and not the runtime, at no cost.
"""

import builtins

BUILTINS = dict(vars(builtins))
