"""Running ahead: holds back the system calls of a shadow, and collects facts for guesses."""
