"""Whose token a route wants: so OpenAPI says, and so operators' routes check once more, behind the routing."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from service.api.auth import Caller
from service.api.middleware import FOR_OPERATORS

_READ = HTTPBearer(
    auto_error=False, scheme_name="reader", description="A token of the file `api.readers`, or an operator's."
)
_OPERATE = HTTPBearer(auto_error=False, scheme_name="operator", description="A token of the file `api.operators`.")

READING = [Security(_READ)]
"""For the description alone: `service.api.middleware` has judged before."""


def _operator(request: Request, scheme: Annotated[object, Security(_OPERATE)]) -> Caller:
    """What the guard took for reading may be a route of operators. Raises HTTPException."""
    caller = request.state.caller
    if not isinstance(caller, Caller) or not caller.may_operate:
        raise HTTPException(HTTPStatus.FORBIDDEN, FOR_OPERATORS)
    return caller


Operator = Annotated[Caller, Depends(_operator)]
