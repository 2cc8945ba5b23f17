"""The short way to the routes that are called most."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from streamdp.service.problems import ProblemError


class Direct:
    """Calls the functions of routes `POST /v1/models/{job}/...`, which take a request and a job and return a response.

    FastAPI describes these routes, but its router and its parameters take longer than a prediction. All other requests
    go to FastAPI.

    Parameters
    ----------
    routes
        Routes of the application. Those of other forms are left out.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes = {
            route.path.removeprefix("/v1/models/{job}/"): route
            for route in routes
            if isinstance(route, APIRoute) and route.methods == {"POST"}
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; see the ASGI specification."""
        parts = scope["path"].split("/") if scope["type"] == "http" and scope["method"] == "POST" else []
        if len(parts) != 5 or parts[:3] != ["", "v1", "models"] or not parts[3] or parts[4] not in self._routes:
            await self._app(scope, receive, send)
            return
        scope["route"] = route = self._routes[parts[4]]
        try:
            response = await route.endpoint(Request(scope, receive), parts[3])
        except ProblemError as error:
            response = error.response()
        await response(scope, receive, send)
