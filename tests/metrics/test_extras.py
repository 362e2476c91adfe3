"""Packages that are missing, and the import of redlatch without them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# None in sys.modules makes an import fail, as for a package that is not installed.
CALL = """
import sys
sys.modules[{missing!r}] = None
import redlatch.metrics
client = redlatch.Client("redis://127.0.0.1:1")
try:
    redlatch.metrics.{call}({argument})
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("call", "missing", "extra", "argument"),
    [
        ("prometheus", "prometheus_client", "redlatch[prometheus]", "client"),
        ("otel", "opentelemetry", "redlatch[otel]", "client"),
        ("traced", "opentelemetry", "redlatch[otel]", "client.lock('x')"),
    ],
)
def test_an_error_names_the_extra_that_is_missing(call: str, missing: str, extra: str, argument: str) -> None:
    program = CALL.format(missing=missing, call=call, argument=argument)
    said = subprocess.check_output([sys.executable, "-W", "error", "-c", program], text=True)
    assert f"redlatch.metrics.{call} needs" in said
    assert f"pip install '{extra}'" in said


@pytest.mark.parametrize("imported", ["redlatch", "redlatch.metrics"])
def test_neither_package_is_imported_before_it_is_needed(imported: str) -> None:
    # redis-py imports opentelemetry if it is installed, so this does not import a client.
    program = f"import json, sys, {imported}; print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(subprocess.check_output([sys.executable, "-c", program])))
    assert imported in loaded
    assert not {"prometheus_client", "opentelemetry", "redlatch.stats", "redlatch.metrics.totals"} & loaded
