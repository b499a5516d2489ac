"""Templates of services: a text with names in braces, each of which stands for a part of the prompt."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from estream.errors import OptionError
from estream.text.segments import Segment

#: Characters of a template.
LONGEST_TEMPLATE = 65_536


@dataclass(frozen=True)
class Template:
    """``text`` with ``names`` in braces; any other brace is a character. The ``document`` stands in it once, and may be
    shortened in a prompt; so do not the other parts. Its own special tokens are special.
    """

    text: str
    document: str
    names: tuple[str, ...]

    def check(self, required: Collection[str]) -> None:
        """Raise OptionError where a name is missing, or the document stands in it twice."""
        if len(self.text) > LONGEST_TEMPLATE:
            raise OptionError(f"a template of {len(self.text)} characters is too long; at most {LONGEST_TEMPLATE} are read")
        found = self._parts[1::2]
        for name in required:
            if name not in found:
                raise OptionError(f"the template has no {{{name}}}; it needs {_braces(required)}")
        if found.count(self.document) > 1:
            raise OptionError(f"the template has {{{self.document}}} {found.count(self.document)} times; once is needed")

    @cached_property
    def _parts(self) -> list[str]:
        """Texts and names by turns."""
        return re.split("{(" + "|".join(map(re.escape, self.names)) + ")}", self.text)

    @property
    def tail(self) -> str:
        """The text behind the last name."""
        return self._parts[-1]

    def segments(self, values: Mapping[str, str], own: Sequence[str] = (), *, tail: str | None = None) -> list[Segment]:
        """The parts of a prompt; values of the names in ``own`` come from the caller, the others are content.

        ``tail`` replaces the text behind the last name.
        """
        found = []
        for index, part in enumerate(self._parts):
            if index % 2:
                found.append(Segment(values[part], part not in own, part == self.document))
            else:
                found.append(Segment(tail if tail is not None and index == len(self._parts) - 1 else part))
        return found


def _braces(names: Collection[str]) -> str:
    return " and ".join(f"{{{name}}}" for name in names)
