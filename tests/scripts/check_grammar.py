# SPDX-License-Identifier: Apache-2.0
"""Random schemas and regular expressions, and random texts that their grammars allow.

    cmake --build build/dev --target grammar_driver
    tests/.venv/bin/python tests/scripts/check_grammar.py build/dev/grammar_driver

The library jsonschema holds each text against its schema, and Python's re each against its
expression. The driver compares masks with what the automaton says of each token by itself. Schemas as
pydantic and zod write them come besides (tests/http/schema_types.py), of which at most 5 % may be
refused. Prints counts; ends with 1 when something is wrong.
"""

import argparse
import collections
import json
import pathlib
import random
import re
import subprocess
import sys

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "http"))
from schema_types import REFUSED, faults_of, random_library_schema, refused_keyword

TOKENIZERS = ["models/regla-books-7.7m", "tests/data/tokenizer/llama.json"]
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6"]
PATTERNS = ["^[a-z]{1,5}$", "^(foo|bar)-\\d{2}$", "[A-Z]", "x$", "^\\w+\\s?\\w*$", "^[^\"\\\\]{0,6}$",
            "^\\d+(\\.\\d+)?$", "a|b", "^[\"\\\\/]+$"]


class Schemas:
    """Makes one random schema. Names in $defs are known from the start, so that they may recur."""

    def __init__(self, rng):
        self.rng = rng
        self.defs = [f"d{i}" for i in range(rng.randint(0, 2))]

    def whole(self):
        schema = self.schema(3)
        if self.defs and isinstance(schema, dict):
            schema["$defs"] = {name: self.container(2) for name in self.defs}
        if self.rng.random() < 0.3 and isinstance(schema, dict):
            schema |= {"title": "t", "description": "d", "$schema": "s", "default": 1}
        return schema

    def schema(self, depth):
        kinds = [self.string, self.integer, self.number, self.values, self.plain, self.plain]
        if depth > 0:
            kinds += [self.container] * 5 + [self.any_of, self.all_of]
        kind = self.rng.choice(kinds)
        return kind(depth) if kind in (self.container, self.any_of, self.all_of) else kind()

    def container(self, depth):
        return self.object(depth) if self.rng.random() < 0.65 else self.array(depth)

    def plain(self):
        if self.rng.random() < 0.15:
            return self.rng.choice([True, {}])
        types = ["null", "boolean", "integer", "number", "string", "array", "object"]
        some = self.rng.sample(types, self.rng.randint(1, 3))
        return {"type": some[0] if len(some) == 1 else some}

    def string(self):
        schema = {"type": "string"}
        how = self.rng.random()
        if how < 0.3:
            schema["minLength"] = self.rng.randint(0, 4)
            if self.rng.random() < 0.8:
                schema["maxLength"] = schema["minLength"] + self.rng.randint(0, 12)
        elif how < 0.6:
            schema["pattern"] = self.rng.choice(PATTERNS)
            if self.rng.random() < 0.3:
                schema["maxLength"] = self.rng.randint(6, 20)
        elif how < 0.8:
            schema["format"] = self.rng.choice(FORMATS)
        return schema

    def integer(self):
        schema = {"type": "integer"}
        low = self.rng.choice([0, 1, -1, -10, 7, 99, 1000, -123456, 10 ** 15])
        if self.rng.random() < 0.6:
            schema[self.rng.choice(["minimum", "exclusiveMinimum"])] = low
        if self.rng.random() < 0.6:
            above = low + self.rng.choice([2, 9, 10, 123, 98765])
            schema[self.rng.choice(["maximum", "exclusiveMaximum"])] = above
        return schema

    def number(self):
        schema = {"type": self.rng.choice(["number", "number", "integer"])}
        low = self.rng.choice([0, 0.5, -1, -10.25, 1e-7, 99.999, -1e16, 123456.789, 0.30000000000000004])
        if self.rng.random() < 0.6:
            schema[self.rng.choice(["minimum", "exclusiveMinimum"])] = low
        if self.rng.random() < 0.6:
            above = low + self.rng.choice([1.5, 2, 9.75, 123.456, 1e5])
            schema[self.rng.choice(["maximum", "exclusiveMaximum"])] = above
        if self.rng.random() < 0.3:  # as doubles, exact
            schema["multipleOf"] = self.rng.choice([1, 3, 7, 0.5, 0.25, 2.5, 60])
        return schema

    def value(self, depth=1):
        some = [None, True, 0, -3, 2.5, 1e30, "a", "é\"\\\n", ""]
        if depth > 0 and self.rng.random() < 0.3:
            return self.rng.choice([[self.value(0)], {"k": self.value(0)}, [], {}])
        return self.rng.choice(some)

    def values(self):
        if self.rng.random() < 0.3:
            return {"const": self.value()}
        return {"enum": [self.value() for _ in range(self.rng.randint(1, 5))]}

    def child(self, depth):
        if self.defs and self.rng.random() < 0.3:
            return {"$ref": f"#/$defs/{self.rng.choice(self.defs)}"}
        return self.schema(depth - 1)

    def object(self, depth):
        schema = {"type": "object"}
        names = self.rng.sample(["a", "b", "name", "x y", "é", "q\"", "id"], self.rng.randint(0, 4))
        if names or self.rng.random() < 0.5:
            schema["properties"] = {}
        required = []
        for name in names:
            recurs = self.child(depth)
            schema["properties"][name] = recurs
            if "$ref" not in recurs if isinstance(recurs, dict) else True:
                if self.rng.random() < 0.5:
                    required.append(name)
        if required:
            schema["required"] = required
        if self.rng.random() < 0.4:
            schema["additionalProperties"] = self.rng.choice(
                [False, True, {"type": "integer"}, {"type": "string", "maxLength": 3}])
        if self.rng.random() < 0.15:
            schema["propertyNames"] = self.rng.choice(
                [{"type": "string"}, {"enum": ["a", "id", "zz"]}, {"maxLength": 4}, {"pattern": "^[a-z]*$"}])
        if self.rng.random() < 0.15:
            schema["minProperties"] = self.rng.randint(0, 1 + len(names))
        if self.rng.random() < 0.15:
            schema["maxProperties"] = self.rng.randint(0, 4)
        if self.rng.random() < 0.2:
            schema["patternProperties"] = {
                pattern: {"type": self.rng.choice(["integer", "null", "string"])}
                for pattern in self.rng.sample(["^p_", "_n$", "^[0-9]+$"], self.rng.randint(1, 2))}
        return schema

    def array(self, depth):
        schema = {"type": "array"}
        if self.rng.random() < 0.2:
            schema |= {"uniqueItems": True, "items": self.rng.choice(
                [self.values(), {"type": "boolean"}, {"enum": list(range(12))}])}
        elif self.rng.random() < 0.8:
            schema["items"] = self.child(depth)
        recurs = isinstance(schema.get("items"), dict) and "$ref" in schema["items"]
        if self.rng.random() < 0.3 and "uniqueItems" not in schema:
            schema["prefixItems"] = [self.schema(0) for _ in range(self.rng.randint(1, 3))]
            if self.rng.random() < 0.3:
                schema["items"] = False
        elif not recurs and self.rng.random() < 0.5:
            schema["minItems"] = self.rng.randint(0, 3)
        if self.rng.random() < 0.5:
            # -1: bounds that no list meets
            schema["maxItems"] = max(0, schema.get("minItems", 0) + self.rng.randint(-1, 4))
        return schema

    def any_of(self, depth):
        key = self.rng.choice(["anyOf", "oneOf"])
        return {key: [self.schema(depth - 1) for _ in range(self.rng.randint(1, 3))]}

    def all_of(self, depth):
        parts = [self.object(depth - 1) for _ in range(2)]
        for part in parts:  # a part that allows its own names only leaves none of the other's
            part.pop("additionalProperties", None)
        return {"allOf": parts}


def as_any(schema):
    """oneOf is anyOf here, as grammar.md says."""
    if isinstance(schema, list):
        return [as_any(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {("anyOf" if key == "oneOf" and isinstance(value, list) else key): as_any(value)
            for key, value in schema.items()}


def expression(rng, depth=2):
    """A random regular expression of what is supported."""
    atoms = ["a", "b", "é", "7", "\\d", "\\w", "\\s", "\\D", "\\W", "\\S", ".", "[a-f]", "[^a-f]",
             "[^\\d]", "[\\w-]", "\\.", "\\n", "\\x41", "\\u00e9", "[]x]"[1:2] + "\\]", "-", "\\/"]
    parts = []
    for _ in range(rng.randint(1, 3)):
        if depth > 0 and rng.random() < 0.4:
            opening = rng.choice(["(", "(?:", f"(?P<n{rng.randint(0, 10 ** 6)}>"])
            choices = [expression(rng, depth - 1) for _ in range(rng.randint(1, 3))]
            atom = opening + "|".join(choices) + ")"
            repeat = rng.choice(["", "", "?", "{2}"])  # more, and Python's search takes for ever
        else:
            atom = rng.choice(atoms)
            repeat = rng.choice(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "+?"])
        parts.append(atom + repeat)
    return "".join(parts)


def lookahead(rng):
    return rng.choice(["(?!", "(?=", "(?!.*", "(?=.*"]) + expression(rng, 0) + rng.choice([")", "$)"])


class Driver:
    def __init__(self, program, tokenizer):
        self.process = subprocess.Popen([program, tokenizer], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, **case):
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the driver ended at {json.dumps(case)}")
        return json.loads(line)


def check_schemas(driver, count, texts, seed):
    tally = {"schemas": 0, "refused": 0, "texts": 0, "cut": 0, "masks": 0, "wrong": 0}
    for i in range(count):
        rng = random.Random(seed * 1000003 + i)
        schema = Schemas(rng).whole()
        answer = driver.ask(kind="json_schema", spec=schema, seed=i, texts=texts, tokens=600, every=40)
        tally["schemas"] += 1
        if "error" in answer:
            tally["refused"] += 1
            if not re.search("none can|only leads to|minProperties|at most 15 digits", answer["error"]):
                tally["wrong"] += 1
                print(json.dumps(schema), answer["error"])
            continue
        validator = jsonschema.Draft202012Validator(
            as_any(schema), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        tally["cut"] += answer["cut"]
        tally["masks"] += answer["masks"]
        for text in answer["texts"]:
            tally["texts"] += 1
            try:
                faults = [error.message for error in validator.iter_errors(json.loads(text))]
            except ValueError as error:
                faults = [str(error)]
            if faults:
                tally["wrong"] += 1
                print(json.dumps(schema), repr(text), faults[0], sep="\n  ")
    return tally


def check_written(driver, count, texts, seed):
    tally = {"written": 0, "refused": 0, "without values": 0, "texts": 0, "cut": 0, "masks": 0, "wrong": 0}
    keywords = collections.Counter()
    for i in range(count):
        schema = random_library_schema(random.Random(seed * 1000003 + i))
        answer = driver.ask(kind="json_schema", spec=schema, seed=i, texts=texts, tokens=600, every=40)
        tally["written"] += 1
        if "error" in answer:
            keyword = refused_keyword(answer["error"])
            tally["refused" if keyword else "without values"] += 1
            keywords[keyword] += 1
            if keyword and keyword not in REFUSED:
                tally["wrong"] += 1
                print(json.dumps(schema), answer["error"], sep="\n  ")
            continue
        tally["cut"] += answer["cut"]
        tally["masks"] += answer["masks"]
        for text in answer["texts"]:
            tally["texts"] += 1
            faults = faults_of(text, schema)
            if faults:
                tally["wrong"] += 1
                print(json.dumps(schema), repr(text), faults[0], sep="\n  ")
    print(f"seed {seed}, refused by keyword:", dict(keywords))
    if tally["refused"] > count / 20:
        tally["wrong"] += 1
        print(f"expected at most 5 % refused, got {tally['refused']} of {count}")
    return tally


def check_expressions(driver, count, texts, seed):
    tally = {"expressions": 0, "refused": 0, "texts": 0, "cut": 0, "masks": 0, "wrong": 0}
    for i in range(count):
        rng = random.Random(seed * 1000003 + i)
        pattern = lookahead(rng) + expression(rng, 1) if rng.random() < 0.2 else expression(rng)
        answer = driver.ask(kind="regex", spec=pattern, seed=i, texts=texts, tokens=300, every=20)
        tally["expressions"] += 1
        if "error" in answer:
            tally["refused"] += 1
            if not re.search("none can|states", answer["error"]) or "(?" not in pattern:
                tally["wrong"] += 1
                print(repr(pattern), answer["error"])
            continue
        tally["cut"] += answer["cut"]
        tally["masks"] += answer["masks"]
        for text in answer["texts"]:
            tally["texts"] += 1
            if not re.fullmatch(pattern, text):
                tally["wrong"] += 1
                print(repr(pattern), repr(text))
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driver")
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--written", type=int, default=300, help="schemas of pydantic and zod")
    parser.add_argument("--expressions", type=int, default=200)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", action="append")
    options = parser.parse_args()
    wrong = 0
    for tokenizer in options.tokenizer or TOKENIZERS:
        driver = Driver(options.driver, tokenizer)
        for tally in (check_schemas(driver, options.schemas, options.texts, options.seed),
                      check_written(driver, options.written, options.texts, options.seed),
                      check_expressions(driver, options.expressions, options.texts, options.seed)):
            print(tokenizer, " ".join(f"{key} {value}" for key, value in tally.items()))
            wrong += tally["wrong"]
    return 1 if wrong else 0


sys.exit(main())
