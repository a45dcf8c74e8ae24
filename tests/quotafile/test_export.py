"""The quota file as a document and as an exported text, which read back as the same file; and its JSON Schema."""

from __future__ import annotations

import json

import jsonschema
import pytest
import yaml

from jupyter_gpu_quota import quotafile
from jupyter_gpu_quota.quotafile import QuotaFile
from jupyter_gpu_quota.quotafile.meanings import MEANINGS
from tests.quotafile.texts import BANK, LEAST, MONDAY, WHOLE, read


def test_a_document_reads_back() -> None:
    file = read(WHOLE)
    document = json.loads(json.dumps(file.to_document()))
    again = QuotaFile.from_document(document)
    assert again.policy(1) == file.policy(1)
    assert again.to_document() == document
    assert "revision" not in document


@pytest.mark.parametrize("text", [WHOLE, BANK], ids=["a plain file", "departments and a calendar"])
def test_a_document_as_a_text_reads_as_the_same_file(text: str) -> None:
    file = read(text)
    document = json.loads(json.dumps(file.to_document()))
    again = read(json.dumps(document))
    assert again.to_document() == document == QuotaFile.from_document(document).to_document()
    assert again.policy(1, MONDAY) == file.policy(1, MONDAY)
    jsonschema.validate(yaml.safe_load(text), quotafile.schema())
    jsonschema.validate(document, quotafile.schema())


def test_an_invalid_document_raises() -> None:
    with pytest.raises(ValueError, match="no pool b"):
        QuotaFile.from_document({"version": 1, "pools": [], "projects": [{"name": "p", "quota": {"b": {}}}]})


def test_a_binary_float_is_no_amount() -> None:
    document = {"version": 1, "pools": [{"name": "a"}], "projects": [{"name": "p", "quota": {"a": {"training": 0.1}}}]}
    with pytest.raises(ValueError, match="instead of an amount"):
        QuotaFile.from_document(document)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "version: 1 # a\nrevision: 3 # b\npools: []\nprojects: []\n",
            ("version: 1 # a\nrevision: 9 # b\npools: []\nprojects: []\n"),
            id="replaced where it stood",
        ),
        pytest.param(
            "# head\nversion: 1\npools: []\nprojects: []",
            ("# head\nrevision: 9\nversion: 1\npools: []\nprojects: []"),
            id="added, comments kept",
        ),
        pytest.param(
            "{version: 1, pools: [], projects: []}",
            ("{revision: 9, version: 1, pools: [], projects: []}"),
            id="added to a file of braces",
        ),
        pytest.param(
            "---\n  version: 1\n  pools: []\n  projects: []\n",
            ("---\n  revision: 9\n  version: 1\n  pools: []\n  projects: []\n"),
            id="added where it is indented",
        ),
        pytest.param(
            "version: 1\r\npools: []\r\nprojects: []\r\n",
            ("revision: 9\nversion: 1\r\npools: []\r\nprojects: []\r\n"),
            id="added to a file from Windows",
        ),
        pytest.param(
            "version: 1\nrevision: # none yet\npools: []\nprojects: []\n",
            ("version: 1\nrevision: 9 # none yet\npools: []\nprojects: []\n"),
            id="an empty key is filled",
        ),
        pytest.param(
            "{revision, version: 1, pools: [], projects: []}",
            ("{revision: 9, version: 1, pools: [], projects: []}"),
            id="so is one in braces without a colon",
        ),
        pytest.param(
            "version: 1\n? revision # none yet\npools: []\nprojects: []\n",
            ("version: 1\nrevision: 9 # none yet\npools: []\nprojects: []\n"),
            id="and one after a question mark without a colon",
        ),
        pytest.param(
            "{version: 1, pools: [], projects: [],\n  ? revision\n}",
            ("{version: 1, pools: [], projects: [],\n  revision: 9\n}"),
            id="that in braces, at the end of its line",
        ),
        pytest.param(
            "version: 1\n? >-\n  revision\npools: []\nprojects: []\n",
            ("version: 1\nrevision: 9\npools: []\nprojects: []\n"),
            id="that as a block of text",
        ),
        pytest.param(
            "version: 1\npools: []\nprojects: []\n? revision",
            ("version: 1\npools: []\nprojects: []\nrevision: 9"),
            id="that at the end of the file",
        ),
        pytest.param(
            "version: 1\n? revision\n: # none yet\npools: []\nprojects: []\n",
            ("version: 1\n? revision\n: 9 # none yet\npools: []\nprojects: []\n"),
            id="an empty value on a line of its own is filled there",
        ),
        pytest.param(
            '{version: 1, "rev\\\n  ision", pools: [], projects: []}',
            ("{version: 1, revision: 9, pools: [], projects: []}"),
            id="a key in quotes on two lines is written on one",
        ),
        pytest.param(
            "--- !\nversion: 1\npools: []\nprojects: []\n",
            ("--- !\nrevision: 9\nversion: 1\npools: []\nprojects: []\n"),
            id="added below the mark of a plain document",
        ),
        pytest.param(
            "\ufeffversion: 1\npools: []\nprojects: []\n",
            ("revision: 9\nversion: 1\npools: []\nprojects: []\n"),
            id="a byte order mark goes",
        ),
    ],
)
def test_export_writes_the_revision_into_the_author_s_text(text: str, expected: str) -> None:
    assert quotafile.export(text, 9) == expected
    assert read(expected).revision == 9
    assert read(expected).policy(1) == read(text).policy(1)


def test_export_changes_only_the_revision() -> None:
    assert quotafile.export(WHOLE, 17) == WHOLE
    assert quotafile.export(WHOLE, 18) == WHOLE.replace("revision: 17", "revision: 18")


# --- the schema ---------------------------------------------------------------------------------------------------
def test_the_schema_accepts_what_the_reader_accepts() -> None:
    jsonschema.validate(yaml.safe_load(WHOLE), quotafile.schema())
    jsonschema.validate(read(WHOLE).to_document(), quotafile.schema())


@pytest.mark.parametrize(
    "change",
    [
        {"polcy": {}},
        {"version": 2},
        {"departments": [{"name": "x"}]},
        {"projects": [{"name": "p"}]},
        {"pools": [{"name": ""}]},
    ],
    ids=["unknown key", "another version", "departments", "no quota", "no name"],
)
def test_the_schema_refuses_what_the_reader_refuses(change: dict[str, object]) -> None:
    document = {**yaml.safe_load(LEAST), **change}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, quotafile.schema())
    assert isinstance(quotafile.parse(json.dumps(document)), list)


def test_every_key_has_a_meaning_and_every_meaning_a_key() -> None:
    schema = QuotaFile.model_json_schema(by_alias=True)
    keys = {name: section["properties"].keys() for name, section in {"QuotaFile": schema, **schema["$defs"]}.items()}
    assert {name: meanings.keys() for name, meanings in MEANINGS.items()} == keys
