"""The manifest: valid for Kubernetes, and its variables are what a rank understands."""

from __future__ import annotations

from typing import Any

import pytest

from lwcc.__main__ import main
from lwcc.launchers import find_place

ARGV = ["k8s", "manifest", "-np", "3", "--image", "repo/x:1", "--name", "train", "--memory", "4Gi", "--gpus", "1"]
COMMAND = ["python", "train.py", "--text", 'a "b": #c']


def test_the_manifest_is_valid_and_a_misspelt_field_would_not_be(capsys: pytest.CaptureFixture[str]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="the package kubernetes-validate is not installed")
    yaml = pytest.importorskip("yaml")
    assert main([*ARGV, *COMMAND]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [thing["kind"] for thing in objects] == ["Secret", "Service", "Job"]
    for thing in objects:
        validate.validate(thing, "1.30", strict=True)
    job: Any = objects[2]
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == COMMAND
    assert job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    job["spec"]["completionsMode"] = "Indexed"
    with pytest.raises(validate.ValidationError):
        validate.validate(job, "1.30", strict=True)


def test_a_pod_finds_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    yaml = pytest.importorskip("yaml")
    assert main([*ARGV, *COMMAND]) == 0
    secret, service, job = yaml.safe_load_all(capsys.readouterr().out)
    pod = job["spec"]["template"]["spec"]
    env = {row["name"]: row.get("value", secret["stringData"]["secret"]) for row in pod["containers"][0]["env"]}
    place = find_place({**env, "JOB_COMPLETION_INDEX": "2"})
    assert (place.rank, place.size, place.scheme) == (2, 3, "master")
    assert place.host == f"train-0.{pod['subdomain']}" and pod["subdomain"] == service["metadata"]["name"]
    assert place.secret.hex() == secret["stringData"]["secret"]


@pytest.mark.parametrize(
    "argv", [[*ARGV], [*ARGV[:3], "0", *ARGV[4:], "x"], [*ARGV, "--name", "Bad_Name", "x"], [*ARGV, "--port", "0", "x"]]
)
def test_what_kubernetes_would_refuse_is_refused_here(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith("lwcc: k8s")
