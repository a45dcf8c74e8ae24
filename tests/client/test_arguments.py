"""What the client and the command line say of arguments that cannot be: a sentence of ours, and nothing is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from jupyter_gpu_quota.cli import main
from jupyter_gpu_quota.client import Client, GPUQuotaError, Unreachable, WrongArgument, connection, watch
from jupyter_gpu_quota.messages.validation import number_text, shown
from jupyter_gpu_quota.wire.status import VersionView

NOBODY = "http://127.0.0.1:9"
"""The port of discard, where nobody listens: what is sent is Unreachable."""

ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
NO_UTF_8 = b"\xff".decode("utf-8", "surrogateescape")
"""A byte of the command line that is not text."""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(connection, "PAUSES_S", ())
    made = Client(NOBODY, "t", timeout_s=5, environment={})
    monkeypatch.setattr(made._connection, "sleep", lambda seconds: None)
    return made


Ask = Callable[[Client], object]


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        pytest.param(
            lambda c: c.submit(""),
            'command: it is empty; give a program and its arguments, such as "python train.py" or ["python',
            id="an empty command",
        ),
        pytest.param(lambda c: c.submit("python 'x"), "(no closing quotation); give a list of", id="an open quote"),
        pytest.param(
            lambda c: c.submit("x" * 1_000_000),
            "command: it has 1000000 characters, and at most 65536 fit; put long input into a file",
            id="a command of a million letters",
        ),
        pytest.param(
            lambda c: c.dry_run("'" + "x" * 65_536), "65537 characters, and at most 65536", id="one letter too many"
        ),
        pytest.param(lambda c: c.submit("x" * 65_536), "command.0: it has 65536", id="as many as fit are taken apart"),
        pytest.param(lambda c: c.submit(["python", 3]), "command.1: 3 is not text", id="a number as a word"),
        pytest.param(lambda c: c.submit(["a\0b"]), "has the character NUL", id="a word with NUL"),
        pytest.param(lambda c: c.submit("x", gpu=None), "gpu: nothing is not an amount of GPU", id="no GPU amount"),
        pytest.param(lambda c: c.submit("x", gpu=True), "gpu: true is not an amount of GPU", id="yes as an amount"),
        pytest.param(lambda c: c.submit("x", gpu=""), "gpu: it is empty; give an amount", id="an empty amount"),
        pytest.param(lambda c: c.submit("x", gpu="1" * 40), "40 characters, and at most 32 fit", id="a long amount"),
        pytest.param(lambda c: c.submit("x", nodes="2"), "nodes: '2' is not a whole number; write", id="nodes as text"),
        pytest.param(lambda c: c.submit("x", nodes=0), "nodes: 0 is less than 1, the minimum", id="no nodes"),
        pytest.param(
            lambda c: c.submit("x", nodes=10**30),
            "nodes: 1000000000... (of 31 digits) is more than 10000, the maximum",
            id="more nodes than there are atoms",
        ),
        pytest.param(lambda c: c.submit("x", name=""), "name: it is empty; leave it out", id="an empty name"),
        pytest.param(lambda c: c.submit("x", name="a/b"), "name: 'a/b' is not a name", id="a name with a slash"),
        pytest.param(lambda c: c.submit("x", private="yes"), "neither true nor false", id="yes for true"),
        pytest.param(lambda c: c.submit("x", time_limit=90), "give a duration such as", id="a time limit as number"),
        pytest.param(lambda c: c.submit("x", variables="A=1"), "give texts by name", id="variables as one text"),
        pytest.param(lambda c: c.submit("x", bundle="zz"), "is not the digest of a bundle", id="a wrong digest"),
        pytest.param(lambda c: c.submit("x", dir=3), "dir: 3 is not a path of a folder", id="a number as folder"),
        pytest.param(lambda c: c.submit("x", dir=""), "dir: '' is not a path of a folder", id="no folder's name"),
        pytest.param(lambda c: c.submit("x", idempotency_key=""), "idempotency_key: it is empty", id="an empty key"),
        pytest.param(lambda c: c.submit("x", project=NO_UTF_8), "not UTF-8 text", id="a project that is not text"),
        pytest.param(lambda c: c.job(""), "job: '' is not an id; give a job's id, as jobs() lists", id="no job's id"),
        pytest.param(lambda c: c.job(None), "job: nothing is not an id", id="nothing for a job"),
        pytest.param(lambda c: c.explain(3), "workload: 3 is not an id", id="a number for a workload"),
        pytest.param(lambda c: c.keep([]), "notebook: a list is not an id; give a", id="a list for a notebook"),
        pytest.param(lambda c: c.drain("", deadline="2h"), "node: '' is not an id; give a node's", id="no node's id"),
        pytest.param(lambda c: c.drain("n", deadline=3), "deadline: 3 is not text; give a", id="a bare deadline"),
        pytest.param(lambda c: c.clone("x", gpu=[1]), "gpu: a list is not an amount of GPU", id="a list for an amount"),
        pytest.param(lambda c: c.logs("x", attempt="a"), "attempt: 'a' is not a whole number", id="an attempt as word"),
        pytest.param(lambda c: c.logs("x", rank=-1), "rank: -1 is less than 0", id="a rank below none"),
        pytest.param(lambda c: c.download("x", "d", ["a"]), "is not a list of files", id="names for outputs"),
        pytest.param(lambda c: c.jobs(limit="all"), "limit: 'all' is not a whole number", id="a word for a limit"),
        pytest.param(lambda c: c.jobs(project=NO_UTF_8), "project: it has bytes", id="a filter that is not text"),
        pytest.param(lambda c: c.usage(since=[1]), "from: a list is not text", id="a list for an instant"),
        pytest.param(lambda c: c.preview(None), "text: nothing is not text; give the text of", id="no quota file"),
        pytest.param(lambda c: c.preview("x", revision='"'), "revision: '\"' is not a whole", id="a quote"),
        pytest.param(lambda c: c.apply("x", comment="x" * 2000), "2000 characters, and at most 1000", id="a story"),
        pytest.param(lambda c: c.revert("a"), "revision: 'a' is not a whole number", id="a word for a revision"),
        pytest.param(lambda c: next(watch(c, "x", timeout_s="a")), "timeout_s: 'a' is not a number", id="a time"),
        pytest.param(lambda c: Client(3), "url: 3 is not text; give the hub's address", id="a number for an address"),
        pytest.param(lambda c: Client(NOBODY, 3), "token: 3 is not text", id="a number for a token"),
        pytest.param(lambda c: Client(NOBODY, "t", timeout_s=-1), "timeout_s: -1 is not a number", id="a time below 0"),
    ],
)  # fmt: skip
def test_an_impossible_argument_is_refused_with_a_sentence(client: Client, ask: Ask, expected: str) -> None:
    with pytest.raises(WrongArgument) as caught:
        ask(client)
    assert expected in str(caught.value)
    assert str(caught.value).endswith("Nothing was sent.")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "address", ["http://[::1", "http://x:99999", "http://x:port", "http://x y", f"http://{NO_UTF_8}"]
)
def test_an_invalid_address_is_refused_with_a_valid_example(address: str) -> None:
    with pytest.raises(Unreachable, match=r"is not an address; write the hub's, such as https://hub.example.org"):
        Client(address)


def test_a_secret_of_a_wrong_kind_is_not_repeated(client: Client) -> None:
    with pytest.raises(WrongArgument) as caught:
        client.submit("x", secrets={"PASSWORD": 12345678}, dir=None)
    assert "secrets.PASSWORD: what was given is not text" in str(caught.value)
    assert "12345678" not in str(caught.value)


def test_an_invalid_answer_is_reported_with_its_position_in_our_own_sentence(client: Client) -> None:
    with pytest.raises(Unreachable) as caught:
        client._connection.as_model(VersionView, {"version": 3})
    assert str(caught.value).endswith("is of another version: version: 3 is not text.")


STRANGE: tuple[Any, ...] = (
    None,
    "",
    " ",
    "\0",
    NO_UTF_8,
    3,
    -1,
    1.5,
    10**30,
    True,
    b"x",
    [],
    [1],
    {},
    {"a": 1},
    object(),
)
RAW = (
    "validation error",
    "pydantic",
    "Input should",
    "expected str",
    "not iterable",
    "not supported",
    "attribute",
    "codec",
)


def calls() -> Iterator[tuple[str, str]]:
    for name, call in inspect.getmembers(Client, inspect.isfunction):
        for parameter in list(inspect.signature(call).parameters.values())[1:]:
            if not name.startswith("_") and parameter.kind is not parameter.VAR_KEYWORD:
                yield name, parameter.name


@pytest.mark.parametrize(("name", "parameter"), list(calls()))
def test_every_public_call_reports_wrong_arguments_in_our_own_sentences(
    client: Client, name: str, parameter: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = getattr(client, name)
    needed = [p.name for p in inspect.signature(call).parameters.values() if p.default is p.empty and p.kind < 2]
    for strange in STRANGE:
        given = dict.fromkeys(needed, "x") | {parameter: strange}
        if "revision" in needed and parameter != "revision":
            given["revision"] = 1
        try:
            answer = call(**given)
            for _ in answer if inspect.isgenerator(answer) else ():
                pass
        except (GPUQuotaError, TypeError) as error:
            assert not any(raw in str(error) for raw in RAW), f"{name}({parameter}={strange!r}): {error}"


# --- the command line ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["clone", ID, "--name", ""], "name: it is empty", id="a clone without a name"),
        pytest.param(["clone", ID, "--time-limit", "x" * 50], "--time-limit': 'xxx", id="a long limit"),
        pytest.param(["job", ""], "job: '' is not an id", id="the job that a variable did not name"),
        pytest.param(["keep", " "], "notebook: ' ' is not an id", id="the notebook that a variable did not name"),
        pytest.param(["nodes", "cordon", ""], "node: '' is not an id", id="the node that a variable did not name"),
        pytest.param(["nodes", "drain", "n", "--deadline", "x" * 200], "--deadline': 'xxx", id="a long deadline"),
        pytest.param(["quota", "apply", "-", "--comment", "x" * 2000], "comment: it has 2000", id="a story as comment"),
        pytest.param(["usage", "--from", NO_UTF_8], "is not an instant", id="an instant of odd bytes"),
        pytest.param(["jobs", "--project", NO_UTF_8], "project: it has bytes", id="a project of odd bytes"),
        pytest.param(["submit", "--gpu", "", "--", "x"], "'--gpu': '' is not an amount", id="an empty amount"),
        pytest.param(["submit", "--dir", "", "--", "x"], "--dir '' is not a folder", id="no folder"),
        pytest.param(["submit", "--idempotency-key", "", "--", "x"], "idempotency-key: it is empty", id="an empty key"),
        pytest.param(["submit", "--gpu-model", "!", "--", "x"], "'!' is not a list of models", id="no model"),
        pytest.param(["submit", "--memory", "999999999999GiB", "--", "x"], "at most 1024TiB", id="RAM"),
        pytest.param(["simulate", ""], "no trace was given", id="a trace that a variable did not name"),
    ],
)  # fmt: skip
def test_wrong_usage_is_refused_with_a_sentence_and_ends_with_2(
    words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PAUSES_S", ())
    monkeypatch.setenv("JUPYTER_GPU_QUOTA_URL", NOBODY)
    done = CliRunner().invoke(main, words, input="version: 1\n", catch_exceptions=False)
    assert (expected in done.stderr, done.exit_code) == (True, 2), done.stderr


# --- how values are repeated --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (-7, "-7"),
        (10**23, "1" + "0" * 23),
        (10**24, "1000000000... (of 25 digits)"),
        (10**24 - 1, "9" * 24),
        (10**30 - 1, "9999999999... (of 30 digits)"),
        (-(10**30), "-1000000000... (of 31 digits)"),
        (10**512, "1000000000... (of 513 digits)"),
        (10**5000, "1000000000... (of 5001 digits)"),
        (1e30, "1e+30"),
        (float("inf"), "a number beyond 1.7e+308"),
    ],
    ids=lambda value: str(value)[:12] if isinstance(value, str) else "",
)
def test_a_long_number_is_abbreviated(value: float, expected: str) -> None:
    assert number_text(value) == expected


def test_a_long_text_is_repeated_by_its_beginning() -> None:
    assert shown("x" * 1000) == f"'{'x' * 40}'..."
