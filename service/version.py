"""Which Lethe this is."""

#: The wheels take it from here.
VERSION = "0.1.0"
