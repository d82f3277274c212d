"""How `kvgate serve --help` looks: one value where one is meant, and the default of each option."""

from __future__ import annotations

import argparse

from router.config.options import Option


class OptionsHelp(argparse.HelpFormatter):
    """The parser takes any number of words for every option; help shows what is meant."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        option = getattr(action, "option", None)
        if not isinstance(option, Option):
            return super()._format_args(action, default_metavar)
        if option.value.switch:
            return f"[{option.value.metavar}]"
        return f"{option.value.metavar} ..." if option.many else option.value.metavar


def help_line(option: Option) -> str:
    default = default_words(option)
    line = f"{option.help} [{default}]" if default else option.help
    return line.replace("%", "%%")


def default_words(option: Option) -> str:
    """The default as one would write it; "" where there is none."""
    default = option.default
    if default is None or default == () or default == "":
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if option.value.metavar == "SIZE" and isinstance(default, int):
        return f"{default >> 20}MiB"
    return f"{default:g}" if isinstance(default, float) else str(default)
