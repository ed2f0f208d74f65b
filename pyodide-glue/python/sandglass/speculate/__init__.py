"""Answers statements that are proven pure by what they came to before: see `memo`."""
