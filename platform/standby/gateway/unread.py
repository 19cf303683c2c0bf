"""Prompts of streamed requests that an engine has been given and not yet answered: what the next one there waits for.

An engine reads a prompt before its first token, and reads them in turn, while those that it already answers hardly delay
another's first token. Only a stream tells when its prompt has been read; a whole answer comes when everything is over.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Unread:
    """One request's prompt at one instance, entered in ``board``, the gateway's bytes by instance, until ``read``."""

    board: dict[str, int]
    instance: str
    prompt_bytes: int

    def __post_init__(self) -> None:
        self.board[self.instance] = self.board.get(self.instance, 0) + self.prompt_bytes

    def read(self) -> None:
        """Take it from the board; once is enough, more does no harm."""
        if not self.prompt_bytes:
            return
        left = self.board[self.instance] - self.prompt_bytes
        self.prompt_bytes = 0
        if left:
            self.board[self.instance] = left
        else:
            del self.board[self.instance]
