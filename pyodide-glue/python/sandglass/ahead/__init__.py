"""Running ahead: what is held back until the code has come, and what guesses are made of."""
