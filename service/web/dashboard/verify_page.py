"""The public page that verifies a receipt in the browser; the code on receipts leads here."""

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from projector.forgetting.status import LARGEST_TOLERANCE
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.states import (
    GUARANTEES,
    GUARANTEES_OF_JOINS,
    IN_PLAIN_WORDS,
    IN_PLAIN_WORDS_OF_JOINS,
    NOTHING_LEFT,
    NOTHING_LEFT_UNKNOWN,
)
from service.log.commitments import FIGURES_COMMITMENT
from service.log.leaves import FORMAT as LEAF_FORMAT
from service.log.receipt import ENTRY_MEMBERS, FORMAT, MEMBERS
from service.log.signed_checkpoints import CheckpointRepository
from service.web.dashboard.pages import CONTENT_SECURITY_POLICY, Page, public_page
from service.web.dashboard.signing_in import PATH
from service.web.services import services_of

router = APIRouter(prefix=f"{PATH}/verify", route_class=Page, include_in_schema=False)

#: The page cannot connect anywhere: a receipt given to it cannot leave the browser.
_POLICY = CONTENT_SECURITY_POLICY.replace("connect-src 'self'", "connect-src 'none'").replace(
    "form-action 'self'", "form-action 'none'"
)
#: Verification rules for the script of the page.
_RULES = {
    "format": FORMAT,
    "leafFormat": LEAF_FORMAT,
    "members": sorted(MEMBERS),
    "entryMembers": sorted(ENTRY_MEMBERS),
    "largestTolerance": LARGEST_TOLERANCE,
    "figuresCommitment": FIGURES_COMMITMENT,
    "guarantees": {guarantee.value: [GUARANTEES[guarantee], IN_PLAIN_WORDS[guarantee]] for guarantee in GUARANTEES},
    "guaranteesOfJoins": {
        guarantee.value: [GUARANTEES_OF_JOINS[guarantee], IN_PLAIN_WORDS_OF_JOINS[guarantee]]
        for guarantee in GUARANTEES_OF_JOINS
    },
    "joining": [kind.value for kind in RequestKind if kind.rules.joins],
    "nothingLeft": [NOTHING_LEFT, NOTHING_LEFT_UNKNOWN],
    "kinds": {kind.value: kind.rules.plain for kind in RequestKind},
}


@router.get("")
async def verify_page(request: Request) -> Response:
    """The form, with the public keys of this log; the browser does the rest."""
    async with transaction(services_of(request).engine) as connection:
        keys = [str(key) for key in (await CheckpointRepository(connection).keys()).values()]
    return public_page("verify.html", policy=_POLICY, keys=keys, rules=orjson.dumps(_RULES).decode())
