#!/bin/sh
# Runs once, when the volume is new: creates a login for each kind of process. Neither owns anything; migrations grant
# their rights.
set -eu
psql --set=ON_ERROR_STOP=1 \
    --set=api="$LETHE_API_DATABASE_PASSWORD" --set=unlearner="$LETHE_UNLEARNER_DATABASE_PASSWORD" \
    --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" <<'END'
CREATE ROLE lethe_api LOGIN PASSWORD :'api';
CREATE ROLE lethe_unlearner LOGIN PASSWORD :'unlearner';
END
