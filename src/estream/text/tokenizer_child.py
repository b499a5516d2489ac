"""A child process that tries a tokenizer under the system's limits. It is run as a program, and imports of estream only what
opens a tokenizer.
"""

import json
import sys
from types import ModuleType

#: Address space beside 40 bytes for each byte of the file; processor seconds beside one for each 2 MiB; open files.
MEMORY, SECONDS, FILES = 1 << 30, 3, 5
#: Tokens that a text may have for each of its bytes.
MOST_TOKENS = 64
#: Letters, figures, signs and spaces of many kinds, characters that have other forms, and long words.
TEXTS = (
    "",
    " ",
    "Hello, world! It's 12,345.67 o'clock.\n\n\tdef f(x): return x ** 2  # comment\r\n",
    "caf\u00e9 cafe\u0301 \ufb01n \u00bd \u2460 \u212b \uff21\uff22 \u3392 \ufdfa \u0130 \u1e9e",
    "\u4f60\u597d\u3002\u3053\u3093\u306b\u3061\u306f \uc548\ub155 \u0645\u0631\u062d\u0628\u0627 \u0928\u092e",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u200b\ufeff\u00ad\u0000\u001b",
    "".join(chr(c) for c in range(0x20, 0x3000)),
    "a" * 4096,
    "word " * 1024,
)


def main() -> None:
    """Read ``tokenizer.json`` from standard input; write what is wrong with it, if anything, to standard output."""
    content = sys.stdin.buffer.read()
    sys.path[:], folder = json.loads(sys.argv[1])
    # The package without what it imports for everybody else.
    package = ModuleType("estream")
    package.__path__ = [folder]
    sys.modules["estream"] = package
    from estream.text.child_limits import limit_process
    from estream.text.open_tokenizer import opened

    limit_process(MEMORY + 40 * len(content), SECONDS + len(content) // (2 << 20), FILES)
    try:
        tokenizer, _ = opened(content)
        for text in TEXTS:
            ids = tokenizer.encode(text).ids
            if len(ids) > MOST_TOKENS * (len(text.encode()) + 1):
                print(f"a text of {len(text.encode())} bytes has {len(ids)} tokens")
            tokenizer.decode(ids[:4096], skip_special_tokens=False)
    except BaseException as error:  # a panic of the library is no Exception
        print(" ".join(str(error).split())[:300] or type(error).__name__)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
