"""A hook of `make docs`: roles of docstrings, such as :func:`patch`, become code."""

import re


def on_page_content(html: str, **_: object) -> str:
    """The page without names of roles, and with short names of what they refer to."""
    return re.sub(r":(?:func|class|meth|mod|attr):<code>~?([^<]*)</code>", r"<code>\1</code>", html)
