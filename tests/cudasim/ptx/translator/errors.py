"""The one exception of the translator: what is not understood, and where."""


class PtxError(Exception):
    """Something of the PTX that the translator does not know. Silence would be a wrong program."""

    def __init__(self, line: int, message: str):
        super().__init__(message)
        self.line = line
        self.message = message
