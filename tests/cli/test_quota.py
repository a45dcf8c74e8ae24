"""``quota`` and ``audit``."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu_quota.cli.quota import SHOWN_AFFECTED, SHOWN_ROWS
from jupyter_gpu_quota.client import Client
from jupyter_gpu_quota.client.listing import Listing
from jupyter_gpu_quota.wire import AffectedView, AuditView
from jupyter_gpu_quota.wire.quota import PreviewView
from tests.cli.commands import run
from tests.client.fake_service import QUOTA_TEXT, World


def test_export_and_apply_go_round(world: World, tmp_path: Path) -> None:
    exported = run("quota", "export").stdout
    assert exported == QUOTA_TEXT
    (tmp_path / "q.yaml").write_text(exported)
    assert run("quota", "apply", "q.yaml", "--comment", "c").stdout == "revision 5 is in force\n"
    assert run("quota", "apply", "-", stdin=exported).exit_code == 0
    assert [row["revision"] for row in json.loads(run("quota", "history", "--json").stdout)] == [4, 3]
    assert run("quota", "revert", "3").stdout == "revision 5 is in force: back to revision 3\n"
    assert run("quota", "revert", "4").stdout == "nothing was changed: revision 4 is in force already\n"


def test_a_stale_file_is_refused(world: World) -> None:
    done = run("quota", "apply", "-", stdin="version: 1\nrevision: 3\n")
    assert (done.exit_code, done.stderr) == (1, "The file was made from another revision; 4 is in force.\n")


def test_an_overcommitment_is_accepted_by_name(world: World) -> None:
    text = "revision: 4 # overcommit"
    assert run("quota", "apply", "-", stdin=text).exit_code == 1
    assert run("quota", "apply", "-", "--accept-overcommit", stdin=text).exit_code == 0
    refused = run("quota", "preview", "-", stdin=text)
    assert (refused.exit_code, refused.stderr) == (
        1,
        "refused: 5 of 4 GPUs are promised.\n"
        "correct the file, or accept this: jupyter gpu-quota quota apply --accept-overcommit -\n",
    )
    assert refused.output.endswith(refused.stderr), "what it ends on is whether it would be refused"
    accepted = run("quota", "preview", "-", "--accept-overcommit", stdin=text)
    assert (accepted.exit_code, accepted.stderr) == (0, "accepted: 5 of 4 GPUs are promised.\n")


def test_a_preview_ends_as_apply_would(world: World) -> None:
    removes = run("quota", "preview", "-", stdin="revision: 4 # remove")
    assert removes.exit_code == 1 and removes.stderr.endswith("quota apply --accept-removal -\n")
    assert run("quota", "preview", "-", "--json", stdin="revision: 4 # remove").exit_code == 1
    assert run("quota", "preview", "-", "--accept-removal", stdin="revision: 4 # remove").exit_code == 0
    for text in ("version: 1\n", "version: 1\nrevision: 3\n"):
        stale = run("quota", "preview", "-", stdin=text)
        assert (stale.exit_code, stale.stderr) == (
            1,
            "refused: The file was made from another revision; 4 is in force.\n",
        )
        for command in ("preview", "apply"):
            assert run("quota", command, "-", "--replace", stdin=text).exit_code == 0


def test_a_preview_shows_arithmetic_and_affected_work(world: World) -> None:
    done = run("quota", "preview", "-", stdin=QUOTA_TEXT)
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        ["train: 2 + 2 = 4 of 4", "paused: its guarantee shrinks. (job B1, bobs)"],
    )


def test_a_preview_has_sums_first_and_counts_the_work_of_a_long_list(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [
        AffectedView(job=f"J{n}", project="bobs", user="bob", effect="drains", message=f"bob's job {n} keeps its GPU.")
        for n in range(SHOWN_AFFECTED + 2)
    ]
    found = PreviewView(changes=["Pool old is removed."], arithmetic=["Pool new: 2 = 2"], refusals=[], affected=jobs)
    monkeypatch.setattr(Client, "preview", lambda *_, **__: found)
    assert run("quota", "preview", "-", stdin=QUOTA_TEXT).stdout.splitlines() == [
        "Pool new: 2 = 2",
        "Pool old is removed.",
        f"drains: {SHOWN_AFFECTED + 2} jobs",
        *(f"drains: bob's job {n} keeps its GPU. (job J{n}, bobs)" for n in range(SHOWN_AFFECTED)),
        "drains: 2 more; --all prints them",
    ]
    everything = run("quota", "preview", "-", "--all", stdin=QUOTA_TEXT).stdout.splitlines()
    assert len([line for line in everything if line.startswith("drains: bob")]) == len(jobs)


def test_a_preview_prints_the_sums_of_changed_pools_and_all_only_with_all(world: World) -> None:
    text = f"{QUOTA_TEXT}# small stays"
    paused = "paused: its guarantee shrinks. (job B1, bobs)"
    assert run("quota", "preview", "-", stdin=text).stdout.splitlines() == [
        "train: 2 + 2 = 4 of 4",
        paused,
        "unchanged pools are left out; --all prints them",
    ]
    everything = run("quota", "preview", "-", "--all", stdin=text).stdout.splitlines()
    assert everything == ["train: 2 + 2 = 4 of 4", "Pool small: 1 device", paused]


def test_a_preview_shows_the_edit(world: World) -> None:
    raised = run("quota", "preview", "-", stdin=f"{QUOTA_TEXT}# raise")
    assert raised.stdout.splitlines()[1] == "Project bobs, pool train: limit 3 instead of 2."
    same = run("quota", "preview", "-", stdin=f"{QUOTA_TEXT}# same")
    assert same.stdout.splitlines()[0] == "The file is the same as the one in force."


def test_a_preview_prints_the_complete_command_that_accepts_it(world: World, tmp_path: Path) -> None:
    (tmp_path / "my quota.yaml").write_text("revision: 3 # overcommit, remove")
    refused = run("quota", "preview", "--replace", "--accept-removal", "--url", world.url, "my quota.yaml")
    assert refused.exit_code == 1
    command = shlex.split(refused.stderr.splitlines()[-1].removeprefix("correct the file, or accept this: "))
    assert command == [
        *("jupyter", "gpu-quota", "quota", "apply", "--accept-overcommit", "--accept-removal", "--replace"),
        *("--url", world.url, "my quota.yaml"),
    ]
    assert run(*command[2:]).exit_code == 0


@pytest.mark.parametrize("text", ["revision: 4 # overcommit, no device", "revision: 3 # overcommit"])
def test_a_preview_offers_no_option_where_the_file_itself_is_wrong(world: World, text: str) -> None:
    refused = run("quota", "preview", "-", stdin=text)
    assert refused.exit_code == 1 and "accept this" not in refused.stderr


def test_a_preview_shows_changes_of_the_calendar(world: World) -> None:
    done = run("quota", "preview", "-", stdin=f"{QUOTA_TEXT}# nights")
    assert done.exit_code == 0 and "Calendar nights is taken out." in done.stdout.splitlines()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x" * 1_000_001], ids=["no text", "a megabyte and more"])
def test_an_invalid_quota_file_is_not_sent(world: World, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "q.yaml").write_bytes(content)
    assert run("quota", "apply", "q.yaml").exit_code == 1
    assert world.seen == []


def test_the_audit_is_the_newest_rows_and_says_how_many_are_older(world: World) -> None:
    world.audit_rows = SHOWN_ROWS + 3
    newest = run("audit")
    assert len(newest.stdout.splitlines()) == 1 + SHOWN_ROWS and newest.stdout.splitlines()[1].startswith("53")
    assert newest.stderr == "3 older rows not shown; --all shows all, and --since, --actor or --action fewer\n"
    assert len(run("audit", "--all").stdout.splitlines()) == 1 + world.audit_rows


@pytest.mark.parametrize("option", ["--json", "--csv", "--all"])
def test_a_audit_is_intact_has_no_limit_and_each_row_once(
    world: World, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    world.audit_rows, world.written_meanwhile, limits, audit = 450, 3, list[int | None](), Client.audit

    def noting_limit(client: Client, **wanted: Any) -> Listing[AuditView]:
        limits.append(wanted["limit"])
        return audit(client, **wanted)

    monkeypatch.setattr(Client, "audit", noting_limit)
    printed = run("audit", option).stdout
    if option == "--json":
        seqs = [row["seq"] for row in json.loads(printed)]
    else:
        seqs = [int(re.split("[ ,]", line)[0]) for line in printed.splitlines()[1:]]
    assert (seqs, limits) == (list(range(450, 0, -1)), [None])


def test_the_audit_is_a_table_a_document_and_a_sheet(world: World) -> None:
    table = run("audit", "--since", "2027-01-01T00:00:00Z").stdout.splitlines()
    assert table[1].split() == ["1", "2027-01-02", "03:04:05Z", "=ann", "queued", "ann's", "job", "train", "fraud"]
    assert "HASH" not in table[0] and "HASH" in run("audit", "--hashes").stdout.splitlines()[0]
    assert json.loads(run("audit", "--json").stdout)[0]["kind"] == "submit"
    sheet = run("audit", "--csv").stdout.splitlines()
    said = "1,2027-01-02T03:04:05Z,'=ann,queued ann's job train,'=ann,submit,J1,fraud,"
    assert sheet[1] == said + '"{""gpu"": ""1""}",0,1'


def test_a_wrong_action_is_refused_with_all_actions(world: World) -> None:
    refused = run("audit", "--action", "colour")
    assert refused.exit_code == 2
    assert "job.cancel" in refused.stderr and "cancelled a job" in refused.stderr
    assert run("audit", "--action", "cancelled").exit_code == 0


def test_a_broken_audit_ends_with_1(world: World) -> None:
    assert run("audit", "verify").stdout == "All 2 rows are intact.\n"
    world.audit_is_intact = False
    done = run("audit", "verify")
    assert (done.exit_code, done.stderr) == (1, "Row 2 does not follow from row 1.\n")


def test_audit_verify_takes_its_own_address(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTER_GPU_QUOTA_URL")
    assert run("audit", "verify", "--url", world.url).exit_code == 0
    assert run("audit", "--url", world.url).exit_code == 0
