"""The user's variables outside of their interpreter: saved by value, and what cannot be saved."""
