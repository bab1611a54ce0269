"""Host lists: what parses, what does not, and where the caret points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lwcc.launcher.hosts import Host, HostError, parse_hostfile, parse_hosts

NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}(\.[a-z]{1,4})?", fullmatch=True)
HOSTS = st.lists(st.builds(Host, NAMES, st.integers(1, 999)), min_size=1, max_size=8, unique_by=lambda h: h.name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", [("a", 1)]),
        ("a:4,b:2", [("a", 4), ("b", 2)]),
        ("a slots=4, b  slots = 2", [("a", 4), ("b", 2)]),
        ("n[1-3]:8", [("n1", 8), ("n2", 8), ("n3", 8)]),
        ("n[08-10,1].lan", [("n08.lan", 1), ("n09.lan", 1), ("n10.lan", 1), ("n1.lan", 1)]),
        ("r[1-2]n[1-2]", [("r1n1", 1), ("r1n2", 1), ("r2n1", 1), ("r2n2", 1)]),
        ("[::1]:2,127.0.0.1:3", [("::1", 2), ("127.0.0.1", 3)]),
    ],
)
def test_both_dialects_and_ranges_parse(text: str, expected: "list[tuple[str, int]]") -> None:
    assert [(h.name, h.slots) for h in parse_hosts(text)] == expected


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 0, "no host"),
        ("a:", 2, "number of slots"),
        ("a:0", 2, "slots must be"),
        ("a:x", 2, "number of slots"),
        ("a,,b", 2, "can't start with ','"),
        ("a,", 2, "after the comma"),
        ("a b", 2, "expected a comma"),
        ("n[3-1]", 2, "backwards"),
        ("n[1-", 1, "unbalanced"),
        ("n[]", 2, "expected a number"),
        ("n[1-2-3]", 5, "expected ',' or ']'"),
        ("n[1-99999]", 2, "more than"),
        ("a:1,a:2", 4, "named twice"),
        ("-a", 0, "can't start with '-'"),
    ],
)
def test_an_error_points_at_the_column(text: str, column: int, problem: str) -> None:
    with pytest.raises(HostError, match=r"^-H: ") as caught:
        parse_hosts(text, "-H")
    assert problem in str(caught.value)
    assert caught.value.column == column
    assert str(caught.value).splitlines()[-1] == "  " + " " * column + "^"


def test_a_hostfile_has_comments_and_blank_lines() -> None:
    text = "# cluster\n\na slots=4  # first\nb:2, c\n"
    assert parse_hostfile(text) == (Host("a", 4), Host("b", 2), Host("c", 1))


def test_a_hostfile_error_names_file_and_line() -> None:
    with pytest.raises(HostError, match=r"^my\.hosts, line 2: "):
        parse_hostfile("a\nb::\n", "my.hosts")
    with pytest.raises(HostError, match="names no host"):
        parse_hostfile("# nothing\n", "my.hosts")


@given(HOSTS, st.sampled_from([":{}", " slots={}"]), st.sampled_from([",", ", "]))
def test_printing_and_parsing_are_inverse(hosts: "list[Host]", form: str, comma: str) -> None:
    text = [h.name + form.format(h.slots) for h in hosts]
    assert list(parse_hosts(comma.join(text))) == hosts
    assert list(parse_hostfile("\n".join(text))) == hosts


@given(st.text(alphabet="ab1[]-,: =slot#\n\t.é\x00", max_size=40))
def test_any_text_gives_hosts_or_a_host_error_inside_the_text(text: str) -> None:
    for parse in (parse_hosts, parse_hostfile):
        try:
            hosts = parse(text)
        except HostError as error:
            assert 0 <= error.column <= len(text)
        else:
            assert hosts and all(h.name and h.slots >= 1 for h in hosts)
