"""Attacks on forgetting: what an attacker learns by querying a model before and after a deletion."""
