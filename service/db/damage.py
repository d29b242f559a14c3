"""Whether Postgres has met damaged pages, whoever asked for them; counted where data checksums are on."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from service.errors import DatabaseDamaged

#: Of this database and of what all databases share, since Postgres started: a restored one is met damaged no more.
_MET = text("""
    SELECT sum(checksum_failures) AS pages, max(checksum_last_failure) AS last FROM pg_stat_database
    WHERE (datname = current_database() OR datid = 0) AND checksum_last_failure >= pg_postmaster_start_time()
""")


async def damage_met(connection: AsyncConnection) -> DatabaseDamaged | None:
    """What there is to say when a page did not match its checksum since Postgres started; None when all did."""
    met = (await connection.execute(_MET)).one()
    if not met.pages:
        return None
    return DatabaseDamaged(
        f"{met.pages} reads since Postgres started met a page that does not match its checksum, the last at "
        f"{met.last:%Y-%m-%d %H:%M:%S} UTC; Postgres' log names the file"
    )
