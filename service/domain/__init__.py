"""States and records that every layer of the service shares; imports nothing of Lethe."""
