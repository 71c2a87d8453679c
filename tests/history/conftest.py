"""An object store for what must hold on one as well."""

from tests.support.s3 import s3_server, s3_uri

__all__ = ["s3_server", "s3_uri"]
