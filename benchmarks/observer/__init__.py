"""What an observer of a running Lethe can infer about deleted nodes: `docs/observer.md`."""
