"""Tokens made in the gateway, from a tokenizer.json and a chat template: the token source `local`.

What needs the packages of the extra `tokenizers` is imported when a tokenizer is loaded: `model` and all that
it imports.
"""

from router.tokens.local.models import LocalModels
from router.tokens.local.source import LocalTokens

__all__ = ["LocalModels", "LocalTokens"]
