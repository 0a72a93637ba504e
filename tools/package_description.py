"""The description of the package on an index: README.md, with links that work outside the clone.

`pyproject.toml` names it as hatchling's metadata hook. The address of the repository stands in `project.urls` alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_RELATIVE = re.compile(r"""(\]\(|(?:src|srcset|href)=")(?!#|[a-z][a-z0-9+.-]*:)(?=[^)"\s]+[)"])""")


def absolute_links(text: str, repository: str) -> str:
    """Return the Markdown with links and pictures below the address of the repository; code and links within the page stay."""
    parts = _CODE.split(text)
    parts[::2] = [_RELATIVE.sub(lambda link: f"{link[1]}{repository.rstrip('/')}/", part) for part in parts[::2]]
    return "".join(parts)


class PackageDescription(MetadataHookInterface):
    """Sets the field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text("utf-8")
        description = absolute_links(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": description}
