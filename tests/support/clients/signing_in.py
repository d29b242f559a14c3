"""Signing in to the dashboard, as a browser does."""

import re

import httpx2

#: Browsers send this header with a form from a page of the same origin.
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


async def sign_in(client: httpx2.AsyncClient, key: str, after: str = "/dashboard") -> httpx2.Response:
    form = await client.get("/dashboard/login")
    fields = {"form_token": token_in(form.text), "key": key, "next": after}
    return await client.post("/dashboard/login", data=fields, headers=SAME_ORIGIN)


def token_in(page: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found
    return found[1]
