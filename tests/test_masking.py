"""What is kept of the text of errors."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
from django.test import override_settings

from django_cronductor.masking import HIDDEN, LONGEST_MESSAGE, LONGEST_TRACEBACK, describe, mask, storable


class Unspeakable(Exception):
    """Nothing can be said of it."""

    def __init__(self, problem: BaseException) -> None:
        super().__init__()
        self.problem = problem

    def __str__(self) -> str:
        raise self.problem

    __repr__ = __str__


def raised(error: BaseException) -> BaseException:
    """Return the error with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


def nested(depth: int) -> None:
    """Raise an error from so deep."""
    if depth == 0:
        raise ValueError("from the depth")
    nested(depth - 1)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("cannot connect to redis://app:s3cr3t-pw@cache:6379/1", "s3cr3t-pw"),
        ("GET /?api_key=abcdef123 failed", "abcdef123"),
        ("{'password': 'pa55word!', 'user': 'ada'}", "pa55word!"),
        ("Authorization: Bearer eyJhbGciOi", "eyJhbGciOi"),
        ("client_secret = xyzzy-xyzzy", "xyzzy-xyzzy"),
        ("postgres://ada:p@ss/word@db/shop", "ss/word"),
        ("postgres://ada:12/34@db/shop", "12/34"),
        ("smtp://ada@example.com:hunter2@mail", "hunter2"),
        ("Authorization: Token abcdef", "abcdef"),
        ("Proxy-Authorization: Custom abcdef", "abcdef"),
        ("{'HTTP_AUTHORIZATION': 'Token abcdef'}", "abcdef"),
        ("authorization_code=abcdef", "abcdef"),
        ("X-Api-Key: abcdef", "abcdef"),
        ("pwd=abcdef", "abcdef"),
        ("passphrase: abcdef", "abcdef"),
        ("private_key=abcdef", "abcdef"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+gh", "def"),
        ("Cookie: sessionid=abcdef", "abcdef"),
        ("Set-Cookie: theme=dark; sid=abcdef", "abcdef"),
        ("sessionid=abcdef", "abcdef"),
        ("password => abcdef", "abcdef"),
        (r"password=ab\cdef", "cdef"),
        ("password = b'abcdef'", "abcdef"),
        ('token = """abcdef"""', "abcdef"),
        ("password=\n  abcdef", "abcdef"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, secret: str) -> None:
    assert secret not in mask(text)
    assert HIDDEN in mask(text)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("password='correct horse battery', user='ada'", f"password='{HIDDEN}', user='ada'"),
        ('{"password": "a,b;c)d", "user": "ada"}', f'{{"password": "{HIDDEN}", "user": "ada"}}'),
        (r"password='it\'s a secret' for ada", f"password='{HIDDEN}' for ada"),
        (r'"{\"password\": \"it is mine\", \"user\": 1}"', rf'"{{\"password\": \"{HIDDEN}\", \"user\": 1}}"'),
        ("password='never closed\nnext line", f"password='{HIDDEN}\nnext line"),
        ("Cookie: a=b; c=d\nHost: example.com", f"Cookie: {HIDDEN}\nHost: example.com"),
        ("redis://:pa/ss@host/1 refused ada@example.com", f"redis://:{HIDDEN}@host/1 refused ada@example.com"),
    ],
)
def test_a_secret_of_several_words_is_hidden_whole_and_what_follows_is_not(text: str, masked: str) -> None:
    assert mask(text) == masked


@pytest.mark.parametrize(
    "text",
    ["password=''", r'"{\"password\": \"\"}"', '{"password": "", "user": 1}', "token: ", "http://ada@example.com/"],
)
def test_where_there_is_no_secret_none_is_feigned(text: str) -> None:
    assert mask(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        *("://", "://:", "://a:", "@://:", "://a:b@", "a", "@", "\\", " ", "\n"),
        *("password", "password=", "password='", "password=\\'", "password=\\", "password: ", "token token=token"),
        *("authorization", "authorization:", "authorization: ", "cookie:\n", "secret-", "='\\", 'password="""'),
        *("passwordpassword         :         ", "api", "session_", "token:token ", "password=\\\\\\"),
    ],
)
def test_a_long_text_is_masked_in_time_that_grows_with_its_length(piece: str) -> None:
    text = (piece * 100_000)[:100_000]
    begun = time.process_time()
    mask(text)
    mask(text[:-1] + "'")
    assert time.process_time() - begun < 1


@override_settings(SECRET_KEY="the-key-of-this-site")
def test_the_passwords_of_the_settings_are_hidden_wherever_they_stand() -> None:
    assert mask("oops: the-key-of-this-site was printed") == f"oops: {HIDDEN} was printed"


def test_other_text_is_left_as_it_is() -> None:
    text = "http://example.com:8000/tokens is a token of no use, key error: 'name'"
    assert mask(text) == text


def test_an_error_is_described_by_type_message_and_traceback() -> None:
    found = describe(raised(LookupError("no rates")))
    assert (found["error_type"], found["error_message"]) == ("LookupError", "no rates")
    assert found["traceback"].startswith("Traceback (most recent call last):")
    assert found["traceback"].endswith("LookupError: no rates\n")


@pytest.mark.parametrize("problem", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), RecursionError()])
def test_an_error_that_cannot_be_shown_is_described_all_the_same(problem: BaseException) -> None:
    found = describe(raised(Unspeakable(problem)))
    assert found["error_type"] == "Unspeakable"
    assert found["error_message"] == f"(The error cannot be shown: that raised {type(problem).__name__}.)"
    assert "Unspeakable" in found["traceback"] or "cannot be shown" in found["traceback"]


def test_an_error_that_shows_itself_as_something_else_than_text_is_described() -> None:
    class Odd(Exception):
        def __str__(self) -> Any:
            return 42

    assert describe(raised(Odd()))["error_message"] == "(The error cannot be shown: that raised TypeError.)"


def test_causes_are_in_the_traceback_and_their_secrets_are_not() -> None:
    error = raised(ValueError("outer"))
    error.__cause__ = raised(OSError("redis://app:hunter2secret@cache:6379/1 refused"))
    found = describe(error)["traceback"]
    assert "OSError" in found
    assert "hunter2secret" not in found


def test_secrets_in_lines_of_code_are_hidden() -> None:
    with pytest.raises(KeyError) as caught:
        {"password": "hunter2secret"}["user"]
    found = describe(caught.value)["traceback"]
    assert '"password"' in found
    assert "hunter2secret" not in found


def test_a_huge_message_is_cut_and_what_is_kept_of_it_has_no_secret() -> None:
    secret = "s3cr3t" * 30
    found = describe(ValueError(f"begins; token={secret} " + "x" * 10_000_000 + f" password={secret}"))
    assert len(found["error_message"]) == LONGEST_MESSAGE
    assert found["error_message"].startswith(f"begins; token={HIDDEN} xxx")
    assert len(found["traceback"]) == LONGEST_TRACEBACK
    assert "s3cr3t" not in found["traceback"] + found["error_message"]


def test_a_deep_traceback_keeps_its_end() -> None:
    with pytest.raises(ValueError, match="from the depth") as caught:
        nested(sys.getrecursionlimit() - 200)
    assert describe(caught.value)["traceback"].endswith("ValueError: from the depth\n")


def test_a_long_name_of_a_class_is_cut() -> None:
    assert len(describe(type("E" * 1000, (Exception,), {})())["error_type"]) == 200


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\x00b", "a\\x00b"), ("a\udc80b", "a\\udc80b"), ("naïve 😀", "naïve 😀"), ("", "")],
)
def test_what_no_database_takes_is_written_out(text: str, shown: str) -> None:
    assert storable(text) == shown


def test_text_is_cut_after_it_was_written_out() -> None:
    assert storable("\x00" * 10, 10) == "\\x00\\x00\\x"


@override_settings(
    DATABASES={"default": {"PASSWORD": "of-the-database"}},
    CACHES={"default": {"OPTIONS": {"PASSWORD": "of-the-cache"}}, "other": {}},
    SECRET_KEY_FALLBACKS=["an-older-key"],
)
@pytest.mark.filterwarnings("ignore:Overriding setting DATABASES")
@pytest.mark.parametrize("secret", ["of-the-database", "of-the-cache", "an-older-key"])
def test_passwords_of_databases_and_caches_and_older_keys_are_hidden(secret: str) -> None:
    assert mask(f"<{secret}>") == f"<{HIDDEN}>"


@override_settings(SECRET_KEY="")
def test_a_project_without_a_secret_key_can_have_its_errors_described() -> None:
    assert mask("plain") == "plain"


@override_settings(SECRET_KEY="secret-key", SECRET_KEY_FALLBACKS=["secret-key-of-last-year"])
def test_of_a_secret_that_begins_like_another_nothing_is_left() -> None:
    assert mask("secret-key-of-last-year") == HIDDEN
