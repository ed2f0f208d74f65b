"""The guest on a host: a process on a socket, its threads and children, and the zygote that forks it."""
