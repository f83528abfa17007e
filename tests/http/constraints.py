# SPDX-License-Identifier: Apache-2.0
"""Random constraints for tests: JSON schemas over the keywords that lib/grammar/grammar.md names,
and regular expressions that Python reads alike. A text of each is soon over, whoever writes it."""

import json
import re

import jsonschema

FORMATS = ("date", "time", "date-time", "uuid", "email", "ipv4")
PATTERNS = ("^[a-z]{2,6}$", "^(red|green|blue)( light)?$", "^\\d{3}-\\d{4}$", "^[A-Z][a-z]*$", "^x?y+z$")
NAMES = ("name", "age", "city", "ä", "a b", "is_open", "tags", "id", "k\"q", "")


def _string(rng):
    kind = rng.randrange(4)
    if kind == 0:
        return {"type": "string", "format": rng.choice(FORMATS)}
    if kind == 1:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    least = rng.randrange(4)
    schema = {"type": "string", "maxLength": least + rng.randrange(12)}
    if rng.random() < 0.5:
        schema["minLength"] = least
    return schema


def _integer(rng):
    schema = {"type": "integer"}
    low = rng.randrange(-1000, 1000)
    if rng.random() < 0.7:
        schema["minimum"] = low
    if rng.random() < 0.7:
        schema["maximum"] = low + rng.randrange(3000)
    return schema


def _simple(rng):
    return rng.choice((
        _string, _string, _integer, _integer,
        lambda rng: {"type": "number"},
        lambda rng: {"type": "boolean"},
        lambda rng: {"type": "null"},
        lambda rng: {"type": rng.sample(["integer", "boolean", "null"], 2)},
        lambda rng: {"enum": rng.sample([1, "two", None, True, "vier", [5], {"six": 6}, "é\n"], 3)},
        lambda rng: {"const": rng.choice([0, "only", False, {"a": [1, 2]}, "\"\\"])},
    ))(rng)


def _object(rng, depth, names):
    chosen = rng.sample(NAMES, rng.randrange(1, 5))
    schema = {"type": "object", "properties": {name: _any(rng, depth - 1, names) for name in chosen},
              "additionalProperties": False}
    schema["required"] = [name for name in chosen if rng.random() < 0.6]
    if rng.random() < 0.15:
        schema["patternProperties"] = {"^p_[a-c]{1,3}$": {"type": "boolean"}}
    elif rng.random() < 0.15:
        schema["additionalProperties"] = {"type": "null"}
    return schema


def _array(rng, depth, names):
    least = rng.randrange(3)
    schema = {"type": "array", "items": _any(rng, depth - 1, names),
              "maxItems": least + rng.randrange(3)}
    if rng.random() < 0.6:
        schema["minItems"] = least
    if rng.random() < 0.3:
        schema["prefixItems"] = [_simple(rng) for _ in range(rng.randrange(1, 3))]
    return schema


def _choice(rng, depth, names):
    if rng.random() < 0.5:
        return {"anyOf": [_any(rng, depth - 1, names) for _ in range(2)]}
    return {"oneOf": [{"type": "null"}, {"type": "boolean"}, _string(rng)]}  # no two at once


def _all_of(rng, depth, names):
    parts = [{"type": "object", "properties": {name: _any(rng, depth - 1, names)}, "required": [name]}
             for name in rng.sample(NAMES, 2)]
    return {"allOf": parts}


def _any(rng, depth, names):
    if depth <= 0 or rng.random() < 0.45:
        return _simple(rng)
    if names and rng.random() < 0.15:
        return {"$ref": f"#/$defs/{rng.choice(names)}"}
    return rng.choice((_object, _object, _array, _choice, _all_of))(rng, depth, names)


def random_schema(rng):
    """An object, an array or a simple value; one in four has definitions, one of which is a list."""
    names = ["item", "list"] if rng.random() < 0.25 else []
    schema = rng.choice((_object, _object, _object, _array, _choice))(rng, 3, names)
    if names:
        schema["$defs"] = {"item": _simple(rng), "list": {
            "type": "object", "properties": {"value": {"type": "integer"},
                                             "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}},
            "required": ["value", "next"], "additionalProperties": False}}
    return schema


def check_json(text, schema):
    """The text is JSON that the schema admits."""
    value = json.loads(text)
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator,
                        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    return value


def _atom(rng, depth):
    kind = rng.randrange(7 if depth else 5)
    if kind == 0:
        return rng.choice(("a", "ß", " ", "=", "\\.", "\\n", "\\\\", "\\x41", "\\u20ac"))
    if kind == 1:
        return rng.choice(("[a-z]", "[^\\d\\n]", "[A-Fa-f0-9]", "[é-ü_]", "[\\w-]", "[^a-y]"))
    if kind == 2:
        return rng.choice(("\\d", "\\w", "\\s", "."))
    if kind in (3, 4):
        return "".join(rng.choice("abcxyz019") for _ in range(rng.randrange(1, 4)))
    return ("(" if kind == 5 else "(?:") + _alternatives(rng, depth - 1) + ")"


def _sequence(rng, depth):
    """Parts that may repeat: a group at most twice, so that no automaton becomes large."""
    parts = []
    for _ in range(rng.randrange(1, 4)):
        atom = _atom(rng, depth)
        if len(atom) > 1 and atom.isalnum():
            atom = f"(?:{atom})"
        often = ("{2}", "{1,3}", "{0,4}", "{2,5}", rng.choice(("+", "*", "{2,}")))
        few = ("?", "{1,2}", "{2}", rng.choice(("+", "*")))
        parts.append(atom + rng.choice(("", "", "", "?", *(few if ")" in atom else often))))
    return "".join(parts)


def _alternatives(rng, depth):
    return "|".join(_sequence(rng, depth) for _ in range(rng.choice((1, 1, 2))))


def random_regex(rng):
    return _alternatives(rng, 2)


def check_regex(text, regex):
    assert re.fullmatch(regex, text), (regex, text)
