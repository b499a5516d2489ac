"""A chat template in a package; the input is its text."""

from pathlib import Path
from random import Random

import estream
from fuzz import fixtures
from fuzz.harness import Run, Target
from fuzz.mutate import mutate_bytes

_MESSAGES = [
    {"role": "system", "content": "You are a river."},
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
    {"role": "user", "content": "a"},
]
_PIECES = r"""
{{ 'a' * 4000000000 }}
{% for a in range(99999) %}
{% endfor %}
{{ x | tojson }}
{{ messages | string }}
{% set n = namespace(s='a') %}
{% set n.s = n.s ~ n.s %}
{{ lipsum(n=9999) }}
{% macro f(x) %}
{% macro f(x) %}{{ f(x) }}{% endmacro %}
{% endmacro %}
{{ f(1) }}
{% if messages[0].role == 'system' %}
{% endif %}
{{ raise_exception('no') }}
{{ cycler('a') }}
{{ joiner('x')() }}
{{ strftime_now('%Y') }}
{{ strftime_now('%9999999d') }}
{{ ''.__class__ }}
{{ 'x' | center(999999999) }}
{{ '%0999999999d' % 1 }}
{{ '{:>999999999}'.format(1) }}
{{ '{0.__class__}'.format(1) }}
{{ 9 ** 9 ** 9 }}
{{ 9 ** 99999 | string | length }}
{{ messages | map(attribute='content') | list }}
{% generation %}
{% endgeneration %}
{%- break -%}
{{ [1] * 1000000000 }}
{{ 'a' | batch(999999999, 0) | list }}
{{ range(10) | slice(99999999) | list }}
{{ 'a'.join(messages | map('string')) }}
{# #}
{{ dict(a=1) | items | list }}
{{ 'a' | indent(999999999) }}
{{ 'ab' | replace('', 'x' * 9999) }}
{{ 'a' | wordwrap(0) }}
{% raw %}
{% endraw %}
{{ self }}
{{ loop }}
{% import 'x' as y %}
{% include '/etc/passwd' %}
{% extends 'x' %}
{% block b %}{% endblock %}
{{ messages.append(1) }}
{{ 'a'.encode('utf-16') }}
{{ '\ud800' }}
{{ range(99999) | sum }}
{{ range(99999) | list | pprint }}
{{ messages | tojson(indent=99999999) }}
{% set x %}{{ x }}{{ x }}{% endset %}
{{ ((((((((((((((((1)))))))))))))))) }}
{% set x = [] %}{% set _ = x.append(x) %}{{ x }}
""".splitlines()[1:]


def _prepare(folder: Path) -> Run:
    package = fixtures.make_package(folder)
    manifest = fixtures.manifest_of(package)

    def run(data: bytes) -> None:
        fixtures.put_file(package, manifest, {"chat_template.jinja": data})
        with estream.load(package, memory=fixtures.MEMORY, threads=1) as model:
            model.encode_chat(_MESSAGES, enable_thinking=True, tools=[{"type": "function", "function": {"name": "f"}}])

    return run


def _mutate(data: bytes, rng: Random) -> bytes:
    if rng.random() < 0.4:
        return mutate_bytes(data, rng)
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_PIECES).encode() + data[at + rng.choice((0, 0, 5)) :]


def _seeds() -> dict[str, bytes]:
    blocks = "{% for m in messages %}{% if m.content is string %}{{ m.content | trim }}"
    blocks += "{% elif m.content %}{{ m.content[0].text }}{% endif %}"
    calls = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson(indent=2) }}{% endfor %}"
    return {
        "plain.jinja": fixtures.TEMPLATE.encode(),
        "blocks.jinja": f"{blocks}{{% endfor %}}".encode(),
        "calls.jinja": f"{calls}{{% endfor %}}{{{{ '<s>' if add_generation_prompt }}}}".encode(),
    }


TARGET = Target("chat_template", ".jinja", _prepare, _mutate, _seeds)
