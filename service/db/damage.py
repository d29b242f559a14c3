"""Damaged pages that Postgres has read, for any client; counted only with data checksums on."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import DatabaseDamaged

#: In this database and the shared catalogs, since Postgres started: after a restore and restart the count is zero.
_MET = text("""
    SELECT sum(checksum_failures) AS pages, max(checksum_last_failure) AS last FROM pg_stat_database
    WHERE (datname = current_database() OR datid = 0) AND checksum_last_failure >= pg_postmaster_start_time()
""")


async def damage_met(connection: AsyncConnection) -> DatabaseDamaged | None:
    """The damage found since Postgres started; None if every page read matched its checksum."""
    met = (await connection.execute(_MET)).one()
    if not met.pages:
        return None
    return DatabaseDamaged(
        f"{met.pages} reads since Postgres started found a page with a wrong checksum, the last at "
        f"{met.last:%Y-%m-%d %H:%M:%S} UTC; Postgres' log names the file"
    )
