"""The centre of a cluster: nodes push what they watched, and everyone sees what is theirs."""

from lowtide.errors import MissingExtra

try:
    import jinja2  # noqa: F401 - pages
    import msgspec  # noqa: F401 - pieces
    import sqlalchemy  # noqa: F401 - tables
    import starlette  # noqa: F401 - the server
    import zstandard  # noqa: F401 - pieces
except ImportError:
    raise MissingExtra("serving a centre", extra="serve") from None
