"""A child process that renders one chat template under the system's limits.

It is run as a program and imports nothing of estream but four files beside it: starting takes a tenth of a second.
"""

import json
import sys
from contextlib import suppress
from types import ModuleType

#: Address space, processor seconds and open files of the process.
MEMORY, SECONDS, FILES = 384 << 20, 1, 3


def main() -> None:
    """Read a template and its variables from standard input, write the text or what failed to standard output."""
    asked = json.loads(sys.stdin.buffer.read())
    sys.path[:] = asked["path"]
    # The package without what it imports for everybody else.
    package = ModuleType("estream")
    package.__path__ = [asked["package"]]
    sys.modules["estream"] = package
    from estream.text.child_limits import limit_process
    from estream.text.template_environment import RefusedError, compiled, environment, render

    made = environment()
    # What is imported late, for an error too, is there before the limits are.
    with suppress(TypeError):
        render(compiled(made, "{{ strftime_now('%Y') ~ ([1] | tojson(indent=1)) ~ (1 + none) }}"), {})
    limit_process(MEMORY, SECONDS, FILES)
    try:
        answer = {"text": render(compiled(made, asked["template"]), asked["context"])}
    except RefusedError as error:
        answer = {"refused": str(error)[:1000]}
    except Exception as error:  # a template is a program: it may fail in any way
        answer = {"failed": f"{type(error).__name__}: {str(error)[:1000]}"}
    sys.stdout.buffer.write(json.dumps(answer).encode())
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
