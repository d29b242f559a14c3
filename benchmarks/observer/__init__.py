"""What an observer of a running Lethe can tell of those who were deleted: `docs/observer.md`."""
