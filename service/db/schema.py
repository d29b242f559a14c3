"""All tables of the database: importing it is declaring them."""

from service.db import (
    audit_totals,
    batches,
    drills,
    imports,
    models,
    recoveries,
    refusals,
    request_search,
    versions,
)
from service.db.base import Base

__all__ = ["Base", "audit_totals", "batches", "drills", "imports", "models", "recoveries", "refusals"]
__all__ += ["request_search", "versions"]
