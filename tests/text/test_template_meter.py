"""What many operations of one template make together is bounded, also where each alone makes no more than it was given."""

import tracemalloc
from pathlib import Path

import pytest

from estream.errors import PromptError
from estream.text import chat_template
from estream.text.chat_template import ChatTemplate

#: A text of 16 million characters, kept whole in each of so many variables.
LONG = "{% set b = 'xxxxxxxxxxxxxxxx' %}" + "{% set b = b ~ b %}" * 20
WIDE = "{% set b = '\U0001f600' %}" + "{% set b = b ~ b %}" * 26


def kept(made: str, times: int = 40) -> str:
    return "".join(f"{{% set a{number} = {made} %}}" for number in range(times))


HOARDS = {
    "filters": LONG + kept("b | upper"),
    "mapped filters": LONG + kept("[] ~ (messages | map(attribute='role') | map('upper') | join(b))"),
    "methods": LONG + kept("b.lower()"),
    "stripped": LONG + kept("b.rstrip('y').lstrip('z')[1:]"),
    "slices": LONG + kept("b[1:]"),
    "reversed": LONG + kept("b | reverse"),
    "lists": kept("range(99999) | list", 200),
    "lists of lists": "{% set l = range(99999) | list %}" + kept("l | list", 400),
    "slices of lists": "{% set l = range(99999) | list %}" + kept("l[1:]", 400),
    "wide characters": WIDE,
    "made wide by one": LONG
    + LONG.replace("b", "c").replace("x", "y")
    + "{% set d = b ~ c ~ '\U0001f600' %}"
    + kept("d ~ '1'"),
    "a form of the time": "{% set b = '%c' %}" + "{% set b = b ~ b %}" * 18 + "{{ strftime_now(b) }}",
}
SLOW = {
    "searched": "{% if 'zq' in b %}{% endif %}",
    "compared": "{% if c == b %}{% endif %}",
    "tested": "{% if c is eq(b) %}{% endif %}",
    "looked for": "{% if 'zq' is in(b) %}{% endif %}",
    "counted": "{% if b.count('zq') %}{% endif %}",
}


def render(template: str) -> str:
    return ChatTemplate(Path("a.estream"), {"default": template}, {}).render([{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize("name", HOARDS)
def test_what_is_kept_is_bounded(name: str):
    assert chat_template._compiled(HOARDS[name]) is not None, "this is about templates that are rendered in the process"
    tracemalloc.start()
    try:
        with pytest.raises(PromptError, match="more than (128 MiB|1 s)|in a form of"):
            render(HOARDS[name])
        assert tracemalloc.get_traced_memory()[1] < 256 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", SLOW)
def test_what_is_only_looked_at_takes_time_too(name: str):
    template = LONG + "{% set c = b ~ '' %}" + SLOW[name] * 3900
    assert chat_template._compiled(template) is not None
    with pytest.raises(PromptError, match="more than 1 s"):
        render(template)


def test_a_long_refusal_is_cut_before_it_is_read():
    template = "{% set b = 'x ' %}" + "{% set b = b ~ b %}" * 22 + "{{ raise_exception(b) }}"
    tracemalloc.start()
    try:
        with pytest.raises(PromptError, match="refuses these messages: x x x"):
            render(template)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ 'abcdef'[1:-1][::-1] }}", "edcb"),
        ("{{ messages[0:] | length }}", "1"),
        ("{{ 'e' in messages[0].content and 'x' not in messages[0].content }}", "True"),
        ("{{ 1 < 2 <= 2 != 3 }}", "True"),
        ("{{ missing == 'a' }}{{ missing is eq('a') }}{{ missing is defined }}", "FalseFalseFalse"),
        ("{{ messages[0].role is in(['user']) }}{{ 'b' ~ 1 ~ ('' | upper) ~ '\U0001f600' }}", "Trueb1\U0001f600"),
        ("{{ messages | map(attribute='content') | map('upper') | list | join(',') }}", "HELLO"),
        ("{{ '%s-%s' % ('a', 1) }}{{ ' a b '.strip().split(' ') | last }}", "a-1b"),
    ],
)
def test_what_is_measured_stays_what_it_was(template: str, expected: str):
    assert render(template) == expected
