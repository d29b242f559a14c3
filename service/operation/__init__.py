"""How the processes are looked after: what must work, what is counted, and who is told."""
