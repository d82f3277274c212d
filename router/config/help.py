"""How `kvgate serve --help` looks: one value where one is meant, and the default of each option."""

from __future__ import annotations

import argparse
from typing import Any


class OptionsHelp(argparse.HelpFormatter):
    """The parser takes any number of words for every option; help shows what is meant."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        option = getattr(action, "option", None)
        if option is None:
            return super()._format_args(action, default_metavar)
        return f"{option.value.metavar} ..." if option.many else str(option.value.metavar)

    def _get_help_string(self, action: argparse.Action) -> str:
        option = getattr(action, "option", None)
        if option is None:
            return action.help or ""
        return f"{action.help} {_default_words(option.default)}".strip()


def _default_words(default: Any) -> str:
    if default in (None, (), ""):
        return ""
    return f"[{str(default).lower() if isinstance(default, bool) else default}]"
