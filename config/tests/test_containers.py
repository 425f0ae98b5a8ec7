"""What can be known about the image and the compose file without a Docker engine."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service.get("build")}
DOCKERFILE = (ROOT / "Dockerfile").read_text()
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def instructions(word: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return [
        line.split(maxsplit=1)[1] for line in joined.splitlines() if line.startswith(f"{word} ")
    ]


def test_the_services_are_the_ones_that_the_design_names():
    assert set(SERVICES) == {"postgres", "redis", "migrate", "web", "worker", "outbox", "beat"}
    assert set(OURS) == {"migrate", "web", "worker", "outbox", "beat"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_a_health_check_and_comes_back_or_runs_once(name: str):
    service = SERVICES[name]
    if name == "migrate":
        assert service["restart"] == "no"
    else:
        assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
        assert service["restart"] == "unless-stopped"


def test_nothing_starts_before_what_it_needs():
    for name in ("web", "worker", "outbox", "beat"):
        needs = {other: how["condition"] for other, how in SERVICES[name]["depends_on"].items()}
        assert needs.pop("migrate") == "service_completed_successfully"
        assert set(needs.values()) == {"service_healthy"}
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert "redis" not in SERVICES["web"]["depends_on"], "intake must start without Redis"


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_of_ours_runs_as_root_or_writes_to_its_image(name: str):
    service = SERVICES[name]
    if name == "postgres":
        return  # its image drops root by itself, after it has prepared the volume
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    if name in OURS:
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "user" not in service, "the image's USER counts"
    else:
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])


def test_the_image_ends_as_an_unprivileged_user_with_a_fixed_number():
    (user,) = instructions("USER")
    uid = user.split(":")[0]
    assert int(uid) >= 10000
    assert f"--uid {uid} " in DOCKERFILE
    for word in ("RUN", "COPY"):
        assert not re.search(rf"^{word} ", DOCKERFILE[DOCKERFILE.index("USER ") :], re.MULTILINE)


@pytest.mark.parametrize("image", [*instructions("FROM"), *(s["image"] for s in SERVICES.values())])
def test_images_are_pinned(image: str):
    name, _, tag = image.partition(":")
    assert name
    assert re.match(r"\d", tag) or image == "tollgate:local"


def test_what_the_image_copies_exists_and_is_not_ignored():
    copied = [source for line in instructions("COPY") for source in line.split()[:-1]]
    assert "requirements.txt" in copied
    for source in copied:
        assert (ROOT / source).exists()
        assert f"!{source}" in IGNORED


def test_secrets_data_and_history_stay_out_of_the_image():
    assert IGNORED[1] == "*", "everything is left out unless it is let in by name"
    let_in = {line[1:] for line in IGNORED if line.startswith("!")}
    assert let_in.isdisjoint({".data", ".git", ".env", ".venv", "tests", "bench"})
    assert "requirements-dev.txt" not in let_in


@pytest.mark.parametrize(
    "words",
    [
        *(service["command"] for service in OURS.values()),
        SERVICES["web"]["healthcheck"]["test"][1:],
        shlex.split(SERVICES["worker"]["healthcheck"]["test"][1]),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_commands_name_what_exists_in_the_image(words: list[str]):
    if words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]) is not None
        assert f"{words[2].replace('.', '/')}.py" not in IGNORED
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()
    else:
        assert words[:2] == ["celery", "--app=config"]


def test_every_variable_that_is_set_is_one_that_somebody_reads():
    readers = [ROOT / "docker-entrypoint.sh", *(ROOT / "config").glob("*.py")]
    code = "\n".join(path.read_text() for path in readers)
    known = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", code))
    known_prefixes = tuple(name for name in known if name.endswith("_"))
    set_here = {name for service in OURS.values() for name in service["environment"]}
    set_here |= {"HOST", "PROMETHEUS_MULTIPROC_DIR"}
    unknown = {name for name in set_here - known if not name.startswith(known_prefixes)}
    assert unknown == set()


def test_secrets_have_no_default():
    text = (ROOT / "docker-compose.yml").read_text()
    for name in ("SECRET_KEY", "POSTGRES_PASSWORD", "WEBHOOK_SECRETS_TILDA", "ALLOWED_HOSTS"):
        uses = re.findall(rf"\$\{{{name}(..)", text)
        assert uses
        assert set(uses) == {":?"}


def test_metrics_are_not_published():
    for service in OURS.values():
        published = service.get("ports", [])
        assert all(not port.endswith(":9100") for port in published)
    assert SERVICES["web"]["environment"]["METRICS_PORT"] == "9100"
    assert SERVICES["worker"]["environment"]["METRICS_PORT"] == "9100"


def test_the_entrypoint_empties_the_metrics_folder_and_hands_over(tmp_path: Path):

    folder = tmp_path / "prometheus"
    folder.mkdir()
    (folder / "counter_1.db").touch()
    done = subprocess.run(
        [ROOT / "docker-entrypoint.sh", "echo", "handed over"],
        env={"PROMETHEUS_MULTIPROC_DIR": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "handed over\n"
    assert list(folder.iterdir()) == []
