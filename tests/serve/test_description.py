"""The API does what its description says: questions are drawn from it, and answers held to it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lowtide.serve.api import ENDPOINTS
from lowtide.serve.openapi import ANSWERS
from support.asking import serving
from support.nightly import drawn
from support.worlds import BOBS, World, world

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("described")
    with world(str(folder / "centre.sqlite"), folder, BOBS["many"]) as made:
        yield made


def test_every_endpoint_is_described(one: World) -> None:
    assert set(ANSWERS) == set(ENDPOINTS)
    told = one.get("ada", "/api/v1/openapi.json").json()
    assert set(told["paths"]) == set(ENDPOINTS)
    assert told["security"] == [{"token": []}]
    for path, operations in told["paths"].items():
        responses = operations["get"]["responses"]
        assert set(responses) == {"200", "400", "401", "404", "429", "503"}, path
        assert responses["200"]["content"]["application/json"]["schema"], path


@pytest.mark.parametrize("path", ENDPOINTS)
def test_answers_are_as_described(one: World, path: str) -> None:
    token = one.tokens["adam"]
    headers = {"Authorization": f"Bearer {token}"}
    ref = one.get("adam", "/api/v1/jobs").json()["jobs"][0]["ref"]
    with serving(one.keeper) as url:
        schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json", headers=headers)
        operation = schema[path]["GET"]
        answered: set[int] = set()

        @hypothesis.settings(
            max_examples=drawn(40, 2000),
            deadline=None,
            database=None,
            derandomize="LOWTIDE_NIGHTLY" not in os.environ,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(), known=hypothesis.strategies.booleans())
        def ask(case, known):
            if known and "ref" in case.path_parameters:
                case.path_parameters["ref"] = ref
            if known and "name" in case.path_parameters:
                case.path_parameters["name"] = "n1"
            if known and path == "/api/v1/plans":
                case.query = {"time": "2:00:00"}
            response = case.call(base_url=url, headers=headers)
            answered.add(response.status_code)
            case.validate_response(response, checks=CHECKS)

        ask()
    # It was not refusals alone that were looked at.
    assert 200 in answered


def test_what_cannot_be_understood_is_said(one: World) -> None:
    told = one.get("ada", "/api/v1/jobs?most=-1&format=xml")
    assert told.status == 400
    words = told.json()["error"]
    assert words.startswith("most: input should be greater than or equal to 1; format: input")
