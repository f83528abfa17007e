# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/tokenizer/: small tokenizers, a text of 1 MB, and what Hugging Face makes of it.

    pip install tokenizers==0.23.3
    python tests/scripts/make_tokenizer_data.py --books BOOKS.jsonl.xz --gpt-neox TOKENIZER.json

BOOKS has public-domain English in one JSON object a line ("text"); the GPT-NeoX tokenizer itself is
not committed, only what it makes of the text. Everything else comes from this file and a fixed seed.

  mixed.txt         the text, of chunks.txt's chunks; each is encoded on its own
  NAME.json         a tokenizer (tokenizer.json as Hugging Face writes it)
  NAME.expected     its ids and texts, as hashes: see expectations()
  variants.json     changes to those tokenizers, one feature each, with their hashes
"""

import argparse
import json
import lzma
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

OUT = Path(__file__).resolve().parent.parent / "data" / "tokenizer"
TOTAL_BYTES = 1_040_000

SENTENCES = """
All human beings are born free and equal in dignity and rights.
Tous les êtres humains naissent libres et égaux en dignité et en droits. L'été, çà et là, où?
Alle Menschen sind frei und gleich an Würde und Rechten geboren. Straße, Größe, ÜBER, ſtraße.
Todos los seres humanos nacen libres e iguales en dignidad y derechos. ¿Cómo? ¡Así!
Все люди рождаются свободными и равными в своём достоинстве и правах. Ёлка, объём, Їжак.
Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. ΣΊΣΥΦΟΣ
يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. ١٢٣٤٥ ـــ مُحَمَّدٌ ۱۲۳
כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. שָׁלוֹם
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। क्षत्रिय १२३
সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। ১২৩
மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர். ௧௨௩
มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ๑๒๓ น้ำ
人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。
人人生而自由﹐在尊嚴和權利上一律平等。「是的」——他說…
すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。カタカナ ｶﾀｶﾅ ㈱ ガギグ
모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 각 간 갂
Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi. Tiếng Việt
ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით. Ⴀ Ა
Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։
ሰብዓዊ ፍጡር ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው። ፩፪፫
མི་རིགས་ཚང་མ་དབང་དང་མཐོང་ལ་འདྲ་མཉམ་ཡིན། ༡༢༣
Wszyscy ludzie rodzą się wolni i równi. Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy.
Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. İstanbul'da ığdır, IŞIK
x² + y³ ≈ ½·√π ∑∞ ∂ƒ/∂x ⅓ ⅷ ① ⓐ ㊿ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 ₿ € £ ¥ № ™ ℃ Å K Ω ﬁ ﬂ ﬆ
I'm sure you're right; they've said we'll go, he'd know it's what 'tis. DON'T, WE'RE, I'LL, ’s ’t 'ſ 'S 'LL
""".strip().split("\n")

CODE = '''
def fibonacci(n: int) -> int:
    """Return the n-th number."""
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b  # swap
    return a

static int parse(const char *s, size_t len, struct error *err)
{
\tfor (size_t i = 0; i < len; i++) {
\t\tif (s[i] == '\\n' || s[i] == '\\t')
\t\t\treturn error_set(err, "bad byte 0x%02X at %zu", s[i], i);
\t}
\treturn 0;
}

{"id": 12345, "list": [1.5e-3, null, true, "a\\u00e9\\n"], "nested": {"k": {}}}
<div class="box" id='x1'><a href="https://example.org/a?b=c&d=%20e#f">link</a></div>
SELECT name, COUNT(*) FROM users WHERE age >= 21 AND city != 'Paris' GROUP BY name;
#!/bin/sh
for f in *.txt; do echo "$f: $(wc -l < "$f")"; done 2>/dev/null | sort -rn | head -20
let mut v: Vec<Option<&'static str>> = vec![None; 10]; // rust
fn main() -> Result<(), Box<dyn Error>> { println!("{:?}", v?); Ok(()) }
0x7fff5fbff8c0 1234567890 3.14159265358979 1,000,000.00 1_000 2026-11-21T10:30:00Z 192.168.0.1
\\begin{equation} \\sum_{i=0}^{n} x_i^2 = \\frac{a}{b} \\end{equation}
'''.strip().split("\n")

EMOJI = (
    "😀 😂 🤣 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇩🇪🇯🇵 🇺🇸 👨🏿‍💻 ❤️ ☎️ 1️⃣ #️⃣ 🧑‍🚀 🫠 🪿 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ⏰ ☃ ♠♥ 🀄 👀👀👀 🤷‍♀️ ‼️ ©️"
).split(" ")

SPECIALS = ["<|endoftext|>", "<|padding|>", "<s>", "</s>", "<unk>", "<mask>", "<sep>", "WORD",
            "<|begin_of_text|>", "<|eot_id|>", "<0x41>", "▁", "Café", "Cafe\u0301"]

SPACES = [" ", "  ", "   ", "    ", "\t", "\n", "\r\n", "\r", "\n\n", "\u00a0", "\u2003", "\u3000",
          "\u2028", "\u0085", "\x0b", "\x0c", "\u200b", "\u180e", "\u1680", "\u202f", "\ufeff"]

RANGES = [(0x20, 0x7F), (0xA0, 0x250), (0x250, 0x370), (0x370, 0x530), (0x530, 0x800),
          (0x800, 0x900), (0x900, 0xE00), (0xE00, 0x1100), (0x1100, 0x1200), (0x1200, 0x1E00),
          (0x1E00, 0x2000), (0x2000, 0x2C00), (0x2C00, 0x3400), (0x3400, 0x4E00),
          (0x4E00, 0xA000), (0xA000, 0xAC00), (0xAC00, 0xD7A4), (0xE000, 0xE100),
          (0xF900, 0x10000), (0x10000, 0x10FFF), (0x11000, 0x12000), (0x16000, 0x17000),
          (0x1D000, 0x1E000), (0x1E000, 0x1F000), (0x1F000, 0x1FB00), (0x20000, 0x20100),
          (0x2F800, 0x2FA20), (0xE0000, 0xE01F0), (0x10FF00, 0x110000)]


def random_character(rng):
    first, last = rng.choice(RANGES)
    return chr(rng.randrange(first, last))


def combining(rng):
    marks = [chr(c) for c in (*range(0x300, 0x370), 0x5B0, 0x5C1, 0x64B, 0x651, 0x93C, 0x94D, 0x9BC,
                              0xE38, 0xE48, 0x3099, 0x309A, 0x20D0, 0x1ABF, 0x898, 0x10F46)]
    words = []
    for _ in range(60):
        base = rng.choice("aeiouyAEIOUcnszlrdtgkかハقשकกก각\u1100\u1161")
        words.append(base + "".join(rng.choice(marks) for _ in range(rng.randrange(5))))
    return rng.choice(["", " "]).join(words)


def jamo(rng):
    syllables = []
    for _ in range(80):
        s = chr(rng.randrange(0x1100, 0x1113)) + chr(rng.randrange(0x1161, 0x1176))
        if rng.random() < 0.5:
            s += chr(rng.randrange(0x11A7, 0x11C3))
        syllables.append(s if rng.random() < 0.9 else chr(rng.randrange(0xAC00, 0xD7A4)) + "\u11a8")
    return "".join(syllables)


def words_between(rng, parts, separators, count):
    return "".join(rng.choice(parts) + rng.choice(separators) for _ in range(count))


def make_chunk(rng, kind, prose):
    if kind == "prose":
        start = rng.randrange(len(prose) - 2000)
        return prose[start : start + rng.randrange(400, 1600)]
    if kind == "code":
        start = rng.randrange(len(CODE))
        indent = rng.choice(["", "", "    ", "\t", " " * rng.randrange(40)])
        lines = [indent + CODE[(start + i) % len(CODE)] for i in range(rng.randrange(4, 14))]
        return rng.choice(["\n", "\n", "\r\n", "\n\n"]).join(lines)
    if kind == "scripts":
        return rng.choice([" ", "\n", ""]).join(rng.choice(SENTENCES) for _ in range(5))
    if kind == "emoji":
        return words_between(rng, EMOJI + ["ok", "lol", "!"], ["", "", " ", "\n"], 70)
    if kind == "control":
        control = [chr(c) for c in range(1, 32)] + ["\x7f", "\x80", "\x9f", "\u200d", "\u202e"]
        return words_between(rng, control + ["a", "Z9", "\x1b[31m"], ["", "", " "], 200)
    if kind == "spaces":
        runs = [rng.choice(SPACES) * rng.randrange(1, 60) for _ in range(12)]
        return words_between(rng, runs + ["x", "word", "9"], SPACES + ["", ""], 24)
    if kind == "newlines":
        return words_between(rng, ["a", "end.", "", "7", "-"], ["\n", "\r\n", "\n \n", " \n\n\n ", "\r"], 150)
    if kind == "combining":
        return combining(rng)
    if kind == "jamo":
        return jamo(rng)
    if kind == "numbers":
        return words_between(rng, [str(rng.randrange(10 ** rng.randrange(1, 14))) for _ in range(40)]
                             + ["١٢٣", "½", "Ⅷ", "2²"], [" ", ", ", ".", "", "-", "e"], 90)
    if kind == "specials":
        return words_between(rng, SPECIALS + ["a", "über", "WORDs", "_WORD"], ["", " ", "  ", "\n", "\t ", "a", "."], 60)
    if kind == "odd":
        return words_between(rng, ["\ufffd", "\ufffe", "\uffff", "\ue000", "\uf8ff", "\U0010ffff", "\ufdd0",
                                   "é", "x", "\u00ad", "\U000e0041", "\ud7ff"], ["", " ", "\ufffd"], 120)
    if kind == "letters":
        return rng.choice("aA.e\u4e00é=") * rng.randrange(100, 1500)
    return "".join(random_character(rng) for _ in range(rng.randrange(100, 500)))  # "random"


KINDS = ("prose prose prose prose code code code scripts scripts emoji control spaces newlines combining "
         "jamo numbers specials odd letters random random").split()


def make_chunks(prose):
    rng = random.Random(20261121)
    chunks, total = [], 0
    while total < TOTAL_BYTES:
        chunk = make_chunk(rng, KINDS[len(chunks) % len(KINDS)], prose)
        chunks.append(chunk)
        total += len(chunk.encode())
    return chunks


# Blocks of 4,096 code points: planes 0 to 3 as far as anything is assigned, tags, the last one.
BLOCKS = [*range(0x34), 0xE0, 0x10F]


def code_points(block):
    """Every code point of a block, in the places where its class matters."""
    points = (c for c in range(block * 4096, block * 4096 + 4096) if not 0xD800 <= c <= 0xDFFF and c)
    return "".join(f"a{chr(c)}1{chr(c)} {chr(c)}{chr(c)}\n" for c in points)


def fnv(data, value=0xCBF29CE484222325):
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def hash_ids(ids):
    return fnv(b"".join(i.to_bytes(4, "little") for i in ids))


def hash_texts(tokenizer, ids):
    both = (tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True))
    return fnv("\0".join(both).encode())


def expectation(tokenizer, index, chunk):
    """Odd chunks get the special tokens of the post-processor."""
    ids = tokenizer.encode(chunk, add_special_tokens=index % 2 == 1).ids
    return f"{len(ids)} {hash_ids(ids):016x} {hash_texts(tokenizer, ids):016x}"


def expectation_or_none(tokenizer, index, chunk):
    """None where the library itself gives up: its offsets do not survive every normalizer."""
    try:
        return expectation(tokenizer, index, chunk)
    except BaseException as error:  # a Rust panic is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return None


def expectations(tokenizer, chunks):
    """One line a chunk: ids, hash of the ids, hash of both decoded texts; then all chunks as one
    text; then blocks of code points."""
    lines = [expectation(tokenizer, i, chunk) for i, chunk in enumerate(chunks)]
    lines.append(expectation(tokenizer, 0, "".join(chunks)))
    lines += [expectation(tokenizer, 0, code_points(block)) for block in BLOCKS]
    return "\n".join(lines) + "\n"


def added(content, special=False, **options):
    return AddedToken(content, normalized=options.pop("normalized", not special), special=special, **options)


ODD_TOKENS = [added("<mask>", True, lstrip=True), added("<sep>", True, rstrip=True),
              added("WORD", single_word=True), added("Café"), added("<|padding|>", True)]


def make_neox(corpus):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=3000, special_tokens=[added("<|endoftext|>", True)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([added(" " * n) for n in range(24, 1, -1)] + ODD_TOKENS)
    return tokenizer


def make_llama(corpus):
    """Trained with Metaspace, so that merges stay within words, then given Llama 2's parts."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=3000, limit_alphabet=300, show_progress=False,
                                  special_tokens=["<unk>", "<s>", "</s>", *fallback])
    tokenizer.train_from_iterator(corpus, trainer)
    state = json.loads(tokenizer.to_str())
    state["pre_tokenizer"] = None
    state["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    state["decoder"] = LLAMA_DECODER
    state["post_processor"] = json.loads(Tokenizer.from_str(json.dumps(state)).to_str())["post_processor"]
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] not in fallback]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    tokenizer.add_tokens(ODD_TOKENS)
    return tokenizer


LLAMA_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def make_llama3(corpus):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2800, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    # Words that no merge reaches: only ignore_merges finds them.
    for word in ("fibonacci", "ĠdignitÃ©", "Ġcharacter", "extraordinary", "ĠLe", "!!!!"):
        vocab.setdefault(word, len(vocab))
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens([added(t, True) for t in ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")])
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="$A $B",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    return tokenizer


def metaspace(scheme, split=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def byte_level(*steps, **options):
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False, **options}
    return {"type": "Sequence", "pretokenizers": [*steps, last]}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


GPT4 = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
        r"|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def normalizer(*steps):
    return {"type": "Sequence", "normalizers": [step if isinstance(step, dict) else {"type": step} for step in steps]}


STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
FUSED = {"type": "Sequence", "decoders": LLAMA_DECODER["decoders"][:3]}

# name, tokenizer, changes at the top, changes in "model"
VARIANTS = [
    ("metaspace always", "llama", {"normalizer": None, "pre_tokenizer": metaspace("always")}, {}),
    ("metaspace first", "llama", {"normalizer": None, "pre_tokenizer": metaspace("first")}, {}),
    ("metaspace never", "llama", {"normalizer": None, "pre_tokenizer": metaspace("never")}, {}),
    ("metaspace whole", "llama", {"normalizer": None, "pre_tokenizer": metaspace("first", False)}, {}),
    ("metaspace decoder", "llama", {"decoder": metaspace("always")}, {}),
    ("metaspace decoder never", "llama", {"decoder": metaspace("never")}, {}),
    ("no strip", "llama", {"decoder": FUSED}, {}),
    ("no decoder", "llama", {"decoder": None}, {}),
    ("unknown fused", "llama", {}, {"byte_fallback": False}),
    ("unknown apart", "llama", {}, {"byte_fallback": False, "fuse_unk": False}),
    ("unknown dropped", "llama", {}, {"byte_fallback": False, "unk_token": None}),
    ("no post-processor", "llama", {"post_processor": None}, {}),
    ("roberta", "llama", {"post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1],
                                             "trim_offsets": True, "add_prefix_space": False}}, {}),
    ("nfkc lower accents", "neox", {
        "added_tokens": [], "normalizer": normalizer("NFD", "Lowercase", "StripAccents", "NFKC", STRIP)}, {}),
    ("nfd", "neox", {"normalizer": {"type": "NFD"}}, {}),
    ("nfkd", "neox", {"normalizer": {"type": "NFKD"}}, {}),
    ("replace regex", "neox", {"added_tokens": [], "normalizer": normalizer(
        {"type": "Replace", "pattern": {"Regex": r"\s{2,}|\p{Mn}"}, "content": "~"})}, {}),
    ("no normalizer", "neox", {"normalizer": None}, {}),
    ("prefix space", "neox", {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True,
                                                "trim_offsets": True, "use_regex": True}}, {}),
    ("digits", "neox", {"pre_tokenizer": byte_level({"type": "Digits", "individual_digits": True}, use_regex=True)}, {}),
    ("digit runs", "neox", {"pre_tokenizer": byte_level({"type": "Digits", "individual_digits": False})}, {}),
    ("whitespace", "neox", {"pre_tokenizer": byte_level({"type": "Whitespace"})}, {}),
    ("whitespace split", "neox", {"pre_tokenizer": byte_level({"type": "WhitespaceSplit"})}, {}),
    ("gpt4", "llama3", {"pre_tokenizer": byte_level(split(GPT4))}, {}),
    ("gpt4 removed inverted", "llama3", {"pre_tokenizer": byte_level(split(GPT4, "Removed", True))}, {}),
    ("gpt4o", "llama3", {"pre_tokenizer": byte_level(split(GPT4O))}, {}),
    ("qwen2", "llama3", {"pre_tokenizer": byte_level(split(QWEN2)), "normalizer": {"type": "NFC"}}, {}),
    ("merges honoured", "llama3", {}, {"ignore_merges": False}),
    ("split string", "llama3", {"pre_tokenizer": byte_level(split("a", "Removed", kind="String"))}, {}),
    ("lookahead", "llama3", {"pre_tokenizer": byte_level(split(r"(?=(\d{3})+(?!\d))"))}, {}),
    ("word", "llama3", {"pre_tokenizer": byte_level(split(r"\w+|[^\w\s]"))}, {}),
    ("several", "llama3", {"pre_tokenizer": byte_level(
        split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
        {"type": "Digits", "individual_digits": True})}, {}),
]
for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
    for inverted in (False, True):
        VARIANTS.append((f"{behavior} {'inverted' if inverted else 'matches'}", "llama3",
                         {"pre_tokenizer": byte_level(split(r"\p{Lu}|\s\p{N}*", behavior, inverted))}, {}))


def make_variants(tokenizers, chunks):
    variants = []
    for name, base, top, model in VARIANTS:
        state = json.loads(tokenizers[base].to_str())
        state.update(top)
        state["model"].update(model)
        tokenizer = Tokenizer.from_str(json.dumps(state))
        expected = [expectation_or_none(tokenizer, i, chunks[i]) for i in range(0, len(chunks), 17)]
        variants.append({"name": name, "base": base, "set": top, "model": model, "expected": expected})
    return variants


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace('],["', '],\n["') + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", required=True)
    parser.add_argument("--gpt-neox", required=True)
    arguments = parser.parse_args()
    with lzma.open(arguments.books, "rt") as file:
        prose = "\n\n".join(json.loads(line)["text"] for line in file)
    chunks = make_chunks(prose)
    text = "".join(chunks).encode()
    assert len(text) >= 1_000_000
    corpus = [prose[i : i + 5000] for i in range(0, 600_000, 5000)] + [
        chunk for i, chunk in enumerate(chunks) if KINDS[i % len(KINDS)] in ("code", "scripts", "emoji")]
    tokenizers = {"neox": make_neox(corpus), "llama": make_llama(corpus), "llama3": make_llama3(corpus)}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "mixed.txt").write_bytes(text)
    (OUT / "chunks.txt").write_text("\n".join(str(len(chunk.encode())) for chunk in chunks) + "\n")
    for name, tokenizer in tokenizers.items():
        state = json.loads(tokenizer.to_str())
        if name == "llama":  # merges as older files spell them
            state["model"]["merges"] = [" ".join(pair) for pair in state["model"]["merges"]]
        write_json(OUT / f"{name}.json", state)
        (OUT / f"{name}.expected").write_text(expectations(tokenizer, chunks))
    neox = Tokenizer.from_file(arguments.gpt_neox)
    (OUT / "gpt-neox.expected").write_text(expectations(neox, chunks))
    write_json(OUT / "variants.json", make_variants(tokenizers, chunks))


if __name__ == "__main__":
    main()
