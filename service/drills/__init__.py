"""Drills: deletions of canaries, which show that deleting works."""
