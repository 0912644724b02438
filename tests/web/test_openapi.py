"""Whatever is sent to the API, it answers as its OpenAPI description says, and never with an error of ours."""

import uuid
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import allow_header_conformance

from tests.web.conftest import Server
from tests.web.host import TOKEN, create_app

schema = schemathesis.openapi.from_dict(create_app().openapi())


@schema.parametrize()
@settings(max_examples=25, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@pytest.mark.timeout(300)
def test_every_request_is_answered_as_described(case: Any, host: Server) -> None:
    user = f"fuzz-{uuid.uuid4().hex}"
    headers = {"x-user": user, "authorization": f"Bearer {TOKEN}"}
    # Starlette's 405 names the methods of one of the routes that share a path.
    case.call_and_validate(host.url, headers=headers, timeout=60, excluded_checks=[allow_header_conformance])
