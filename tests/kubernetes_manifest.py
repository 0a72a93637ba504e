"""conf/kubernetes/batch-job.yaml as tests read it.

Importable from every test as ``kubernetes_manifest`` (pytest's ``pythonpath`` names the folder).
"""

from __future__ import annotations

from typing import Any

import yaml

from documents import ROOT

FILE = ROOT / "conf" / "kubernetes" / "batch-job.yaml"
OBJECTS: tuple[dict[str, Any], ...] = tuple(yaml.safe_load_all(FILE.read_text("utf-8")))


def the(kind: str) -> dict[str, Any]:
    (found,) = (each for each in OBJECTS if each["kind"] == kind)
    return found


def driver() -> dict[str, Any]:
    """The Job's only container."""
    (container,) = the("Job")["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def allowed() -> set[tuple[str, str]]:
    """Verbs and resources of the Role."""
    rules = the("Role")["rules"]
    return {(verb, name) for rule in rules for verb in rule["verbs"] for name in rule["resources"]}
