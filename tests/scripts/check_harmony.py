# SPDX-License-Identifier: Apache-2.0
"""gpt-oss's chats against openai-harmony, token by token: what `regla serve` makes of conversations with
the public template, and what the texts of tests/http/harmony_texts.py say.

    pip install openai-harmony==0.0.8 bpe-openai==0.1.4
    python tests/scripts/check_harmony.py --regla build/dev/regla --template openai-gpt-oss-120b.jinja

The template is in PyPI's llama_cpp_python 0.3.36 (sdist, vendor/llama.cpp/models/templates); bpe-openai
has the vocabulary. Cases are those that both define: the template writes a blank line behind
instructions without tools and a comma behind a default value.
"""

import argparse
import base64
import datetime
import gzip
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "http"))
import harmony_texts  # noqa: E402

SIZE = 201088
NAMED = {199998: "startoftext", 199999: "endoftext", 200002: "return", 200003: "constrain",
         200005: "channel", 200006: "start", 200007: "end", 200008: "message", 200012: "call",
         200018: "endofprompt"}
SPECIAL = {f"<|{NAMED.get(number, f'reserved_{number}')}|>": number for number in range(199998, SIZE)}
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
TODAY = datetime.date.today().isoformat()
USER, INSTRUCTIONS = "What is the weather in Oslo? 世", "Be brief.\n\nSay <b>."
TOOLS = [
    {"name": "weather", "description": "Tells the weather.", "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Where"}, "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "string"}}, "rain": {"type": "boolean"}},
        "required": ["city"]}},
    {"name": "now", "description": "Tells the time."}]
ARGUMENTS = {"city": "Oslo", "days": 3}


def characters():
    """How byte-level BPE spells bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def parts(ranks, token):
    """The two tokens that it is merged from."""
    pieces = [token[i:i + 1] for i in range(len(token))]
    while len(pieces) > 2:
        pairs = [ranks.get(a + b, SIZE) for a, b in zip(pieces, pieces[1:])]
        at = pairs.index(min(pairs))
        pieces[at:at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces


def write_tokenizer(path, vocabulary):
    lines = (line.split() for line in vocabulary.splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    spelled = characters()
    spell = lambda token: "".join(spelled[byte] for byte in token)  # noqa: E731
    path.write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{"id": number, "content": word, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}
                         for word, number in SPECIAL.items()],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True,
                                            "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": True, "vocab": {spell(token): rank for token, rank in ranks.items()},
                  "merges": [[spell(part) for part in parts(ranks, token)]
                             for token in ranks if len(token) > 1]}}))


def write_model(folder, template, vocabulary):
    """The golden case with gpt-oss's vocabulary, whose embeddings are zero."""
    golden = ROOT / "tests" / "golden" / "experts_gpt_oss"
    config = json.loads((golden / "config.json").read_text()) | {"vocab_size": SIZE}
    (folder / "config.json").write_text(json.dumps(config))
    content = (golden / "model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8:begin]), b""
    header["model.embed_tokens.weight"]["shape"][0] = SIZE
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (begin + offset for offset in entry["data_offsets"])
            own = bytes(2 * SIZE * config["hidden_size"]) if "embed" in name else content[start:end]
            entry["data_offsets"] = [len(data), len(data) + len(own)]
            data += own
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    write_tokenizer(folder / "tokenizer.json", vocabulary)
    (folder / "chat_template.jinja").write_text(Path(template).read_text())


def conversations(harmony):
    """Of each: its name, the request, and openai-harmony's messages."""
    role, message = harmony.Role, harmony.Message.from_role_and_content
    efforts = {"low": harmony.ReasoningEffort.LOW, "medium": harmony.ReasoningEffort.MEDIUM,
               "high": harmony.ReasoningEffort.HIGH}
    call = {"id": "c", "type": "function",
            "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}}
    made = (message(role.ASSISTANT, json.dumps(ARGUMENTS)).with_channel("commentary")
            .with_recipient("functions.weather").with_content_type("json"))
    result = (harmony.Message.from_author_and_content(
        harmony.Author.new(role.TOOL, "functions.weather"), json.dumps("4 °C", ensure_ascii=False))
        .with_channel("commentary").with_recipient("assistant"))
    user, asked = {"role": "user", "content": USER}, message(role.USER, USER)
    answer = message(role.ASSISTANT, "It rains.").with_channel("final")
    thought = message(role.ASSISTANT, "I look.").with_channel("analysis")
    cases = []
    for effort, number in efforts.items():
        system = message(role.SYSTEM, harmony.SystemContent.new().with_reasoning_effort(number)
                         .with_conversation_start_date(TODAY))
        for tools in (TOOLS[1:], TOOLS):
            for said in ("", INSTRUCTIONS):
                content = harmony.DeveloperContent.new().with_function_tools([
                    harmony.ToolDescription.new(tool["name"], tool["description"],
                                                parameters=tool.get("parameters")) for tool in tools])
                content = content.with_instructions(said) if said else content
                ask = {"reasoning_effort": effort,
                       "tools": [{"type": "function", "function": tool} for tool in tools]}
                told = [{"role": "system", "content": said}] * bool(said)
                called = {"role": "assistant", "content": None, "tool_calls": [call]}
                turns = {
                    "asked": ([user], [asked]),
                    "called": ([user, called, {"role": "tool", "tool_call_id": "c", "content": "4 °C"}],
                               [asked, made, result]),
                    "thought": ([user, {**called, "reasoning_content": "I look."},
                                 {"role": "tool", "tool_call_id": "c", "content": "4 °C"}],
                                [asked, thought, made, result]),
                    "answered": ([user, {"role": "assistant", "content": "It rains."}, user],
                                 [asked, answer, asked])}
                for name, (messages, theirs) in turns.items():
                    cases.append((f"{name}, {effort}, {len(tools)} tools, {len(said)} characters",
                                  {**ask, "messages": told + messages},
                                  [system, message(role.DEVELOPER, content), *theirs]))
        cases.append((f"bare, {effort}", {"reasoning_effort": effort, "messages": [user]}, [system, asked]))
    return cases


class Server:
    def __init__(self, program, folder):
        command = [program, "serve", "--model", folder, "--port", "0", "--no-page"]
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while not self.is_ready(folder / "log"):
            if self.process.poll() is not None:
                raise SystemExit((folder / "log").read_text())
            time.sleep(0.05)

    def is_ready(self, log):
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        self.url = found and found[0]
        try:
            return found and urllib.request.urlopen(f"{self.url}/ready", timeout=60).status == 200
        except OSError:
            return False

    def tokens(self, body):
        request = urllib.request.Request(f"{self.url}/tokenize", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            return json.loads(urllib.request.urlopen(request, timeout=60).read())["tokens"]
        except urllib.error.HTTPError as refused:
            raise SystemExit(f"{body}: {refused.read().decode()}") from refused


def check_texts(harmony, encoding):
    """What openai-harmony reads of them; one without heads it refuses."""
    differ = 0
    for name, (text, reasoning, content, calls) in harmony_texts.TEXTS.items():
        if name == "plain":
            continue
        messages = encoding.parse_messages_from_completion_tokens(
            encoding.encode(text, allowed_special="all"), harmony.Role.ASSISTANT)
        told = [(message.channel, message.recipient, message.content[0].text) for message in messages]
        thoughts = "\n\n".join(words for channel, to, words in told if channel == "analysis")
        said = "\n\n".join(words for channel, to, words in told if channel != "analysis" and not to)
        called = [(to.removeprefix("functions."), json.loads(words)) for _, to, words in told if to]
        if (thoughts, said, called) != (reasoning, content, calls):
            differ += 1
            print(f"{name}: {told}")
    return differ


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--regla", required=True)
    parser.add_argument("--template", required=True)
    options = parser.parse_args()
    import bpe_openai
    vocabulary = gzip.decompress(
        (Path(bpe_openai.__file__).parent / "data" / "o200k_base.tiktoken.gz").read_bytes())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "o200k_base.tiktoken").write_bytes(vocabulary)
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = name
        import openai_harmony as harmony
        encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
        differ = check_texts(harmony, encoding)
        print(f"{len(harmony_texts.TEXTS) - 1} texts, {differ} differ")
        write_model(folder, options.template, vocabulary)
        server = Server(options.regla, folder)
        if "tool calls: channels" not in (folder / "log").read_text():
            raise SystemExit(f"{options.template}: its channels were not found")
        cases = conversations(harmony)
        try:
            for case, body, messages in cases:
                wanted = encoding.render_conversation_for_completion(
                    harmony.Conversation.from_messages(messages), harmony.Role.ASSISTANT)
                got = server.tokens(body)
                if got != wanted:
                    differ += 1
                    print(f"{case}:\n  wanted {encoding.decode(wanted)!r}\n  got    {encoding.decode(got)!r}")
        finally:
            server.process.terminate()
            server.process.wait(60)
        print(f"{len(cases)} conversations; {differ} of all differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
