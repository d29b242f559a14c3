"""Version of Lethe."""

#: The wheels read it from here.
VERSION = "0.1.0"
