"""Listings of notebooks, devices, nodes and pools, and the tables of a narrow terminal."""

from __future__ import annotations

import json

import pytest

from jupyter_gpu_quota.cli import tables
from tests.cli.commands import NEW, run
from tests.client.fake_service import World, device_view, job_view, reason

LONG_REASON = reason(message="fraud asked for 1 GPU, and no device of pool big has so much free. " * 9)


@pytest.mark.parametrize(
    ("command", "header"),
    [
        ("jobs", ["ID", "NAME", "GPU", "STATE"]),
        ("notebooks", ["ID", "USER", "PROJECT", "GPU", "STATE", "ACTIVITY"]),
        ("devices", ["DEVICE", "POOL", "HEALTH", "FREE", "USED"]),
    ],
)
def test_a_narrow_terminal_has_the_important_columns(
    world: World, monkeypatch: pytest.MonkeyPatch, command: str, header: list[str]
) -> None:
    world.jobs = {NEW: job_view(NEW, reason=LONG_REASON)}
    monkeypatch.setattr(tables, "terminal_width", lambda: 80)
    lines = run(command).stdout.splitlines()
    assert lines[0].split() == header
    assert len(lines) < 6 and max(map(len, lines)) <= 80
    wide = run(command, "--wide").stdout.splitlines()[0].split()
    assert set(header) < set(wide)
    assert len(json.loads(run(command, "--json").stdout)) == 1


def test_a_narrow_table_has_the_short_form_of_a_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.jobs = {NEW: job_view(NEW, reason=LONG_REASON)}
    monkeypatch.setattr(tables, "terminal_width", lambda: 80)
    table = run("jobs").stdout
    assert NEW in table and "asked for 1 GPU" not in table
    world.jobs = {NEW: job_view(NEW, reason=reason(code="of_a_later_release", message="Why it waits."))}
    assert "Why it" in run("jobs").stdout, "there is no short form here"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("notebooks", ["N1", "ann", "0.125 (simulated)", "booked", "unknown"]),
        ("devices", ["d0", "KIND", "simulated", "Sim ?[31m80G ", "train (J1) 0.5 of ann", "another project 0.25"]),
        ("nodes", ["n1", "2", "4096"]),
        ("pools", ["big", "0.25", "Sim 80G"]),
    ],
)
def test_places_are_tables_and_documents(world: World, command: str, words: list[str]) -> None:
    table = run(command, "--wide").stdout
    assert [word for word in words if word not in table] == []
    assert "\x1b" not in table
    assert len(json.loads(run(command, "--json").stdout)) == 1


def test_devices_stand_by_pool_node_and_number(world: World) -> None:
    places = (("small", "n1", 0), ("big", "n2", 0), ("big", "n1", 10), ("big", "n1", 9))
    world.devices = [device_view(f"{pool}-{node}-{index}", pool, node, index) for pool, node, index in places]
    lines = run("devices", "--wide").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["big-n1-9", "big-n1-10", "big-n2-0", "small-n1-0"]
    assert [line.split()[2] for line in lines] == ["real", "real", "real", "simulated"]
