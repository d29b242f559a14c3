"""Secrets that live in files outside the database, and what is computed with them."""
