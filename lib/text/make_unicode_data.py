# SPDX-License-Identifier: Apache-2.0
"""Writes lib/text/unicode_data.c: the Unicode facts that Hugging Face's `tokenizers` goes by.

Its parts carry tables of different Unicode versions (the regular expressions 16, the normalizers
9 or so, Rust's own character methods 17), so every property is asked of the library itself, code
point by code point, instead of being taken from a Unicode release.

    pip install tokenizers==0.23.3 unicodedata2==18.0.0
    python lib/text/make_unicode_data.py > lib/text/unicode_data.c
"""

import sys
import unicodedata
from collections import defaultdict

import tokenizers
import unicodedata2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CATEGORIES = (
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co"
).split()
BITS = {"letter": 1, "number": 2, "space": 4, "word": 8, "mark": 16, "numeric": 32,
        "punctuation": 64}
SCRIPTS = (
    "Arabic Armenian Bengali Bopomofo Common Cyrillic Devanagari Ethiopic Georgian Greek Gujarati "
    "Gurmukhi Han Hangul Hebrew Hiragana Inherited Kannada Katakana Khmer Lao Latin Malayalam "
    "Mn Mongolian Myanmar Sinhala Tamil Telugu Thai Tibetan"
).split()


def matching(pattern):
    """The code points that a regular expression of one character matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", False)
    found = set()
    for at in range(0, len(CODE_POINTS), 4096):
        block = CODE_POINTS[at : at + 4096]
        kept = {c for piece, _ in split.pre_tokenize_str("".join(map(chr, block))) for c in piece}
        found.update(c for c in block if chr(c) not in kept)
    return found


def word_characters():
    """What `single_word` of an added token takes for part of a word."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens([AddedToken("\ue000", single_word=True, normalized=False)])
    return {c for c in CODE_POINTS if not tokenizer.encode(chr(c) + "\ue000").ids}


def classes():
    digits = pre_tokenizers.Digits(False)
    punctuation = pre_tokenizers.Punctuation("removed")
    strip = normalizers.StripAccents()
    table = defaultdict(int)
    for name, members in {
        "letter": matching(r"\p{L}"),
        "number": matching(r"\p{N}"),
        "space": matching(r"\s"),
        "word": word_characters(),
        "mark": {c for c in CODE_POINTS if strip.normalize_str("a" + chr(c)) == "a"},
        "numeric": {c for c in CODE_POINTS if len(digits.pre_tokenize_str("a" + chr(c))) > 1},
        "punctuation": {c for c in CODE_POINTS if not punctuation.pre_tokenize_str(chr(c))},
    }.items():
        for c in members:
            table[c] |= BITS[name]
    return table


def runs(values):
    """[(first, last, value)] of consecutive code points with one value other than None."""
    result = []
    for c in sorted(values):
        if result and result[-1][1] == c - 1 and result[-1][2] == values[c]:
            result[-1][1] = c
        else:
            result.append([c, c, values[c]])
    return result


def new_categories():
    """General categories of what Unicode 14 (PCRE2 10.40 and later has that much) did not have, or
    in another category: U+1171E went from Mn to Mc, so SCRIPTS has all of Mn."""
    assert unicodedata.unidata_version == "14.0.0", "run with CPython 3.11"
    values = {}
    for category in CATEGORIES:
        for c in matching(r"\p{%s}" % category):
            if unicodedata.category(chr(c)) != category:
                values[c] = category
    return runs(values)


def inert():
    """Code points that today's normalization changes and the library's leaves alone."""
    nfc, nfkd = normalizers.NFC(), normalizers.NFKD()

    def leaves_alone(c):
        text = chr(c)
        after, before = "a\u0345" + text, "a" + text + "\u0334"
        return (
            nfkd.normalize_str(text) == text
            and nfkd.normalize_str(after) == after
            and nfkd.normalize_str(before) == before
        )

    found = set()
    for c in CODE_POINTS:
        text = chr(c)
        new = unicodedata2.normalize("NFKD", text)
        if unicodedata2.combining(text) and leaves_alone(c):
            found.add(c)
        elif new != nfkd.normalize_str(text):
            assert nfkd.normalize_str(text) == text, hex(c)
            found.add(c)
        canonical = unicodedata2.decomposition(text)
        if canonical and not canonical.startswith("<") and " " in canonical:
            parts = "".join(chr(int(part, 16)) for part in canonical.split())
            if nfc.normalize_str(parts) != unicodedata2.normalize("NFC", parts):
                found.update([c] + [ord(part) for part in parts if leaves_alone(ord(part))])
    return runs({c: 0 for c in found})


def lowercase():
    """Lower case where it is not that of Unicode 14 (utf8proc 2.8 and later have that much)."""
    lower = normalizers.Lowercase()
    pairs = []
    for c in CODE_POINTS:
        text = lower.normalize_str(chr(c))
        if text != chr(c).lower():
            assert len(text) == 1
            pairs.append((c, ord(text)))
    return pairs


def word_in_patterns():
    """Oniguruma's \\w beyond \\p{L}\\p{M}\\p{Nd}\\p{Pc}."""
    base = matching(r"[\p{L}\p{M}\p{Nd}\p{Pc}]")
    word = matching(r"\w")
    assert base <= word, sorted(map(hex, base - word))[:20]
    return runs({c: 0 for c in word - base})


def scripts():
    found = {name: runs({c: 0 for c in matching(r"\p{%s}" % name)}) for name in SCRIPTS}
    return [(a, b, i) for i, name in enumerate(SCRIPTS) for a, b, _ in found[name]]


def rows(items, per_line):
    for at in range(0, len(items), per_line):
        print("    " + " ".join(items[at : at + per_line]))


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print(f"/* Generated by make_unicode_data.py from tokenizers {tokenizers.__version__}. */")
    print('#include "lib/text/unicode.h"\n')
    print("/* clang-format off */")
    table = classes()
    edges, last = [], 0
    for c in range(0x110000):
        if table.get(c, 0) != last:
            last = table.get(c, 0)
            edges.append(f"0x{c << 8 | last:X},")
    print(f"const uint32_t unicode_class_edges[{len(edges)}] = {{")
    rows(edges, 8)
    print(f"}};\nconst size_t unicode_class_edge_count = {len(edges)};\n")
    found = new_categories()
    print(f"const struct unicode_category_run unicode_new_categories[{len(found)}] = {{")
    rows([f'{{0x{a:X}, 0x{b:X}, "{v}"}},' for a, b, v in found], 4)
    print(f"}};\nconst size_t unicode_new_category_count = {len(found)};\n")
    for name, found in (("inert", inert()), ("pattern_word", word_in_patterns())):
        print(f"const struct unicode_run unicode_{name}[{len(found)}] = {{")
        rows([f"{{0x{a:X}, 0x{b:X}}}," for a, b, _ in found], 6)
        print(f"}};\nconst size_t unicode_{name}_count = {len(found)};\n")
    pairs = lowercase()
    print(f"const struct unicode_run unicode_lowercase[{len(pairs)}] = {{")
    rows([f"{{0x{a:X}, 0x{b:X}}}," for a, b in pairs], 6)
    print(f"}};\nconst size_t unicode_lowercase_count = {len(pairs)};\n")
    print("const char *const unicode_script_names[] = {")
    rows([f'"{name}",' for name in SCRIPTS], 8)
    print(f"}};\nconst size_t unicode_script_count = {len(SCRIPTS)};\n")
    found = scripts()
    print(f"const struct unicode_script_run unicode_script_runs[{len(found)}] = {{")
    rows([f"{{0x{a:X}, 0x{b:X}, {i}}}," for a, b, i in found], 5)
    print(f"}};\nconst size_t unicode_script_run_count = {len(found)};")


if __name__ == "__main__":
    sys.exit(main())
