"""The tokens of node agents in several clusters. The audience of a token names its cluster: no other one gets it."""

from __future__ import annotations

from collections.abc import Mapping

from ..protocol import NodeTokens, TokenRefused
from .names import Names


class ClustersTokens:
    """Verifies each token in the cluster of its audience."""

    def __init__(self, by_name: Mapping[str, NodeTokens]) -> None:
        self._by_name = by_name

    def is_token(self, text: str) -> bool:
        """Whether a text has the form of a token."""
        return any(each.is_token(text) for each in self._by_name.values())

    def node_of(self, token: str) -> str:
        """The node of the agent with this token. Raises TokenRefused, NodeUnverified."""
        refused = list[TokenRefused]()
        for name, tokens in self._by_name.items():
            try:
                return Names(name).outside(tokens.node_of(token))
            except TokenRefused as error:
                refused.append(error)
        raise next((each for each in refused if each.is_valid), refused[0])
