"""Chat templates that would take all memory or all time, and those that only look like it."""

import json
import resource
import time
from pathlib import Path

import pytest
from text_tokenizers import CHATML, PLAIN, USUAL, WITH_BOS

from estream.errors import PromptError
from estream.text import chat_template
from estream.text.chat_template import ChatTemplate
from estream.text.tame import is_tame
from estream.text.template_environment import LONGEST_TEMPLATE, environment

GROWN = "{{% set n = namespace(s='a') %}}{{% for i in range(60) %}}{{% set n.s = {} %}}{{% endfor %}}{{{{ {} }}}}"
DOUBLED = GROWN.replace("{{{{ {} }}}}", "{{{{ n.s | length }}}}")
BOMBS = {
    "a product": "{{ 'a' * (4 * 10**9) }}",
    "a product the other way": "{{ (4 * 10**9) * 'ab' }}",
    "a list's product": "{{ ([1] * 10**9) | length }}",
    "a power": "{{ 10 ** (10 ** 9) }}",
    "towers": "{{ (9 ** (9 ** 9)) | string | length }}",
    "doubled by ~": DOUBLED.format("n.s ~ n.s"),
    "doubled by +": DOUBLED.format("n.s + n.s"),
    "doubled by format": DOUBLED.format("'%s%s' % (n.s, n.s)"),
    "doubled by method": DOUBLED.format("'{0}{0}'.format(n.s)"),
    "doubled by replace": DOUBLED.format("n.s.replace('a', 'aa')"),
    "doubled by the filter replace": DOUBLED.format("n.s | replace('a', 'aa')"),
    "doubled by join": DOUBLED.format("n.s.join([n.s, n.s])"),
    "doubled by the filter join": DOUBLED.format("[n.s, n.s] | join"),
    "joined characters": DOUBLED.format("n.s.join(n.s ~ 'xyz')"),
    "lists in lists": GROWN.format("[n.s, n.s]", "n.s"),
    "lists in JSON": GROWN.format("[n.s, n.s]", "n.s | tojson"),
    "objects in objects": GROWN.format("dict(a=n.s, b=n.s)", "n.s"),
    "compared": "{% set n = namespace(s=1, t=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% set n.t = [n.t, n.t] %}"
    "{% endfor %}{{ n.s == n.t }}",
    "blocks": "{% set a %}" + "x" * 1000 + "{% endset %}"
    + "".join("{% set a %}" + "{{ a }}" * 50 + "{% endset %}" for _ in range(8)) + "{{ a | length }}",
    "padding": "{{ '%999999999d' % 1 }}",
    "padding by argument": "{{ '%*d' % (999999999, 1) }}",
    "padding by format": "{{ '{:999999999}'.format(1) }}",
    "centred": "{{ 'a'.center(999999999) | length }}",
    "centred by a filter": "{{ 'a' | center(999999999) | length }}",
    "indented": "{{ 'a\nb' | indent(999999999) | length }}",
    "indented JSON": "{{ messages | tojson(indent=999999999) }}",
    "batches": "{{ range(9) | batch(999999999, 'x') | list | length }}",
    "slices": "{{ range(9) | slice(999999999, 'x') | list | length }}",
    "words": "{{ lipsum(n=10**6) }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "written in loops": "{% for a in range(99999) %}{% for b in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endfor %}",
    "a large range": "{% for a in range(10**12) %}x{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a loop of itself": "{% for a in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}",
    "brackets": "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    "a long template": "x" * (LONGEST_TEMPLATE + 1),
    "sums": "{{ range(99999) | map('string') | sum(start='') }}",
    "lists of lists": GROWN.format("n.s + n.s", "n.s | length").replace("'a'", "[1]"),
}  # fmt: skip


@pytest.mark.parametrize("case", BOMBS)
def test_a_render_ends_soon_and_takes_little(case: str):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    with pytest.raises(PromptError, match="the chat template 'default' fails with these messages") as refused:
        ChatTemplate(Path(), {"default": BOMBS[case]}, {}).render(PLAIN)
    assert time.perf_counter() - begin < 10
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10 < 256
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("template", [CHATML, WITH_BOS])
def test_plain_templates_need_no_other_process(template: str, monkeypatch: pytest.MonkeyPatch):
    expected = ChatTemplate(Path(), {"default": template}, {"eos_token": "</s>"}).render(PLAIN)
    monkeypatch.setattr(chat_template, "_in_child", lambda *given: pytest.fail("a child"))
    assert ChatTemplate(Path(), {"default": template}, {"eos_token": "</s>"}).render(PLAIN) == expected


def test_both_ways_render_the_same():
    messages = [*PLAIN, {"role": "assistant", "content": "caf\u00e9 \u4f60\n<s>", "list": [1, 2.5, None, True, {"a": "b"}]}]
    for template in (
        CHATML,
        WITH_BOS,
        USUAL,
        "{{ messages | tojson(indent=2) }}",
        "{% for m in messages %}{{ m }}{% endfor %}",
    ):
        context = {"messages": messages, "eos_token": "</s>", "add_generation_prompt": True, "tools": None}
        made = environment()
        assert chat_template._in_child(template, context) == made.from_string(template).render(context)


WILD = [
    "{{ 'a' * 2 }}",
    "{{ [x, x] }}",
    "{{ {'a': x} }}",
    "{{ dict(a=x) }}",
    "{{ 'a' | center(3) }}",
    "{{ x['y'](1) }}",
    "{{ x.format(1) }}",
    "{% set d = dict %}",
    "{{ x | map('center', 9) }}",
    "{{ x | map(y) }}",
]
TAME = [
    "{{ 'a' ~ x ~ [1, 2] }}",
    "{% if x in ['a', 'b'] %}{% endif %}",
    "{% for a, b in x.items() %}{% endfor %}",
    "{{ x | map(attribute='y') | join(', ') }}",
    "{{ messages[1:][0].content.split('a')[-1].strip() }}",
]


def test_what_may_grow_is_rendered_apart():
    made = environment()
    for wild in WILD:
        assert not is_tame(made.parse(wild)), wild
    for tame in TAME:
        assert is_tame(made.parse(tame)), tame


def test_a_child_that_is_killed_or_late_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch):
    wild = ChatTemplate(Path(), {"default": "{{ 'a' * 2 }}"}, {})
    assert wild.render(PLAIN) == "aa"
    monkeypatch.setattr(chat_template, "_CHILD_SECONDS", 0.001)
    with pytest.raises(PromptError, match="fails with these messages .it takes more than 0.001 s."):
        wild.render(PLAIN)
    monkeypatch.setattr(chat_template.sys, "executable", "/nowhere")
    with pytest.raises(PromptError, match="the process that renders it cannot be started: No such file"):
        wild.render(PLAIN)


def test_messages_are_data_alone():
    chat = ChatTemplate(Path(), {"default": "{{ _x }}{{ messages[0].content }}"}, {})
    deep = json.loads("[" * 900 + "]" * 900)
    assert chat.render([{"role": "user", "content": "x"}], self=1, _x=2) == "2x"
    for messages, variables, words in (
        ([{"role": "user", "content": deep}], {}, "message 0 is nested more than 100 levels deep"),
        (PLAIN, {"tools": deep}, "'tools' is nested more than 100 levels deep"),
        (PLAIN, {"template": []}, r"'template' must be the name of a chat template, found \[\]"),
        ([{"role": 5, "content": "x" * 1000}], {}, "message 0 must be an object with a 'role', found {.{,70}$"),
        ([5], {}, "message 0 must be an object with a 'role', found 5"),
    ):
        with pytest.raises(PromptError, match=words):
            chat.render(messages, **variables)
