"""Work ahead: what is held back until it is asked for, and what guesses are made of."""
