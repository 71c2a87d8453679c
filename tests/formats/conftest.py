"""Places to read input from."""

from tests.support.inbox import inbox
from tests.support.s3 import s3_server, s3_uri

__all__ = ["inbox", "s3_server", "s3_uri"]
