"""Types of arguments of several commands."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import click

from redlatch.config import MAX_SECONDS
from redlatch.errors import ConfigurationError
from redlatch.votes.key import prefix_of


class Number(click.FloatRange):
    """A finite number in a range. A longer time than a client allows is shortened."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return min(number, float(MAX_SECONDS))


SECONDS = Number(min=0)
DRIFT_FACTOR = Number(min=0, max=1, max_open=True)


class Name(click.types.StringParamType):
    """The name of a lock or of an owner: UTF-8 in every locale. Bytes that are not UTF-8 stay bytes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        raw = os.fsencode(value)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw


class _Prefix(click.types.StringParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return prefix_of(os.fsencode(value))
        except ConfigurationError as error:
            self.fail(str(error).removeprefix("prefix: "), param, ctx)


NAME = Name()

prefix_option = click.option("--prefix", type=_Prefix(), default="", help="Prefix of the clients' keys.")
master_option = click.option(
    "-m", "--master", "masters", multiple=True, metavar="URL", help="A master; once for each. [REDLATCH_MASTERS]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
strict_option = click.option("--strict", is_flag=True, help="The clients' guard is strict.")
trust_option = click.option("--trust-persistence", is_flag=True, help="The clients' guard trusts persistence.")


def max_ttl_option(least: float) -> Callable[..., Any]:
    text = "max_ttl of the clients' guard, in seconds."
    return click.option("--max-ttl", type=Number(min=least), default=60.0, show_default=True, help=text)


def with_options(*options: Callable[..., Any]) -> Callable[..., Any]:

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
