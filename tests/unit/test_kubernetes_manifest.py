"""conf/kubernetes/batch-job.yaml fits Kubernetes' own schema, and its objects fit each other and docs/deploy.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from documents import ROOT, all_blocks
from kafka_eos_sink.settings.kafka_properties import options_from_file
from kubernetes_manifest import OBJECTS, driver, the
from spark_jobs import batch_to_kafka

SCHEMA = Path(__file__).with_name("kubernetes-1.34.json")
"""The kinds of the manifest in Kubernetes 1.34 (Apache-2.0), without descriptions: each rejects fields that it does not know."""
TYPES = {
    "Job": "api.batch.v1.Job",
    "Role": "api.rbac.v1.Role",
    "RoleBinding": "api.rbac.v1.RoleBinding",
    "Secret": "api.core.v1.Secret",
    "ServiceAccount": "api.core.v1.ServiceAccount",
}


def validate(found: dict[str, Any]) -> None:
    definitions = json.loads(SCHEMA.read_text("utf-8"))
    schema = {"$ref": f"#/$defs/io.k8s.{TYPES[found['kind']]}", **definitions}
    jsonschema.Draft202012Validator(schema).validate(found)


@pytest.mark.parametrize("found", OBJECTS, ids=lambda found: found["kind"])
def test_object_fits_the_schema_of_kubernetes(found: dict[str, Any]) -> None:
    validate(found)


def test_objects_name_each_other() -> None:
    binding, pod = the("RoleBinding"), the("Job")["spec"]["template"]["spec"]
    account = the("ServiceAccount")["metadata"]["name"]
    assert binding["roleRef"]["name"] == the("Role")["metadata"]["name"]
    assert [each["name"] for each in binding["subjects"]] == [account] == [pod["serviceAccountName"]]
    (volume,) = pod["volumes"]
    (mount,) = driver()["volumeMounts"]
    assert volume["secret"]["secretName"] == the("Secret")["metadata"]["name"]
    assert mount["name"] == volume["name"]


def settings_and_job() -> tuple[dict[str, str], list[str]]:
    """The settings of spark-submit, and the job with its arguments."""
    words = driver()["args"]
    at = next(number for number, word in enumerate(words) if word.endswith(".py"))
    given = (word.removeprefix("--conf=").split("=", 1) for word in words[:at] if word.startswith("--conf="))
    return dict(given), words[at:]


def test_executors_have_image_secret_and_python_of_the_driver() -> None:
    settings, _ = settings_and_job()
    (mount,) = driver()["volumeMounts"]
    variables = {each["name"]: each.get("value") for each in driver()["env"]}
    assert settings["spark.kubernetes.container.image"] == driver()["image"]
    assert settings[f"spark.kubernetes.executor.secrets.{mount['name']}"] == mount["mountPath"]
    assert settings["spark.executorEnv.PYSPARK_PYTHON"] == variables["PYSPARK_PYTHON"]
    used = set(re.findall(r"\$\((\w+)\)", " ".join(driver()["args"])))
    assert used == {name for name in variables if name.startswith("POD_")}


def test_job_takes_its_arguments_and_finds_its_properties(tmp_path: Path) -> None:
    _, (program, *arguments) = settings_and_job()
    assert (ROOT / "spark_jobs" / Path(program).name).is_file()
    given = batch_to_kafka.arguments(arguments)
    assert given.txn_app_id is not None  # without it, another attempt of the Job would write the rows again
    ((_, path),) = given.option
    (mount,) = driver()["volumeMounts"]
    folder, _, name = path.rpartition("/")
    assert folder == mount["mountPath"]
    text = the("Secret")["stringData"][name]
    (tmp_path / name).write_text(text, "utf-8")
    assert options_from_file(tmp_path / name)["kafka.bootstrap.servers"]
    paths = re.findall(r"location=(.*)", text)
    assert [path.removeprefix(f"{folder}/") in the("Secret")["stringData"] for path in paths] == [True]


def test_page_shows_the_arguments_of_the_job() -> None:
    (block,) = (block for block in all_blocks() if block.name == "docs/deploy.md#kubernetes")
    assert yaml.safe_load(block.text) == settings_and_job()[1][1:]
    page = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    assert the("Job")["spec"]["backoffLimit"] == 3
    assert "up to three times" in " ".join(page.split())
