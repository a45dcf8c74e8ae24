"""The space of a project's outputs in the quota file."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.quotafile import QuotaFile
from tests.quotafile.test_refused import refused
from tests.quotafile.texts import project, read

DAY_S = 86_400


def test_the_space_is_read_in_mib_and_the_time_in_seconds() -> None:
    storage = read(project("quota: {}\nstorage: {outputs: 1.5GiB, keep: 30d}")).storage_of("p")
    assert (storage.outputs, storage.keep) == (1536, 30 * DAY_S)


@pytest.mark.parametrize(
    "written",
    [
        pytest.param("{outputs: 50GiB, keep: 30d}", id="both"),
        pytest.param("{outputs: 1TiB}", id="only space"),
        pytest.param("{keep: 12h}", id="only a time"),
        pytest.param("{outputs: 1537MiB}", id="no whole GiB"),
        pytest.param("{outputs: null, keep: null}", id="null for no limit"),
    ],
)
def test_storage_is_exported_as_it_was_written(written: str) -> None:
    file = read(project(f"quota: {{}}\nstorage: {written}"))
    document = file.stored_document()
    assert isinstance(document, dict)
    assert QuotaFile.from_document(document).storage_of("p") == file.storage_of("p")


def test_a_section_of_null_as_earlier_releases_stored_it_is_empty() -> None:
    document = read(project("quota: {}")).to_document()
    document["projects"][0]["storage"] = None  # type: ignore[index]
    assert QuotaFile.from_document(document).storage_of("p").model_fields_set == set()


def test_a_project_without_limits_has_none() -> None:
    file = read(project("quota: {}"))
    assert (file.storage_of("p").outputs, file.storage_of("p").keep, file.keeps_outputs_s) == (None, None, 0)
    assert file.storage_of("unknown").outputs is None


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        pytest.param("{outputs: 50}", "is not an amount of memory; write MiB or GiB", id="a size without a unit"),
        pytest.param("{outputs: 50GB}", "is not an amount of memory; write MiB or GiB", id="another unit"),
        pytest.param("{outputs: 0GiB}", "with no space no job could be submitted", id="no space"),
        pytest.param("{outputs: 9999999TiB}", "is more memory than anything has", id="more than there is"),
        pytest.param("{outputs: [50GiB]}", "a list was given instead of an amount of space", id="a list"),
        pytest.param("{keep: 0s}", "kept for a minute at least", id="no time"),
        pytest.param("{keep: month}", "keep", id="a time in words"),
        pytest.param("{output: 50GiB}", "did you mean 'outputs'", id="a mistyped key"),
        pytest.param("50GiB", "keys and values are expected (outputs, keep)", id="no section"),
    ],
)
def test_wrong_storage_is_refused_with_a_sentence(storage: str, words: str) -> None:
    found = refused(project(f"quota: {{}}\nstorage: {storage}"))
    assert any(words in message for _, message in found), found
