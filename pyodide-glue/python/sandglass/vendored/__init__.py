"""Packages of others, unchanged, for guests that lack them. They are imported under their own names.

- `cloudpickle/`  3.1.2, by the CloudPickle developers and contributors; its licence is at the head of `cloudpickle.py`
"""
