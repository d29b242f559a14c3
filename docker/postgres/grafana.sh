#!/bin/sh
# Runs once, when the volume is new: creates a login for Grafana that reads only the audit's views. Migrations grant the views
# to lethe_audit.
set -eu
psql --set=ON_ERROR_STOP=1 --set=password="$GRAFANA_DATABASE_PASSWORD" \
    --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" <<'END'
CREATE ROLE lethe_audit NOLOGIN;
CREATE ROLE grafana LOGIN PASSWORD :'password' IN ROLE lethe_audit;
END
