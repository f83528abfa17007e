# SPDX-License-Identifier: Apache-2.0
"""Random schemas as two libraries write them: pydantic by itself, and zod 4 (z.toJSONSchema) by hand.
Fields are drawn among what the libraries have, those too that no grammar can say."""

import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import re
import typing
import uuid
import warnings

import jsonschema
import pydantic
import pydantic.json_schema
from pydantic import Field

# What may be refused, by the keyword that the message names: the table "Types of pydantic and zod" in
# lib/grammar/grammar.md.
REFUSED = {"uniqueItems", "minProperties", "not"}

# Those that are enforced.
_ALL_FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers
FORMAT_CHECKER = jsonschema.FormatChecker(formats=())
FORMAT_CHECKER.checkers = {name: check for name, check in _ALL_FORMATS.items() if name in (
    "date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname", "duration")}

Annotated = typing.Annotated


class Color(enum.Enum):
    red = "red"
    blue = "blue"
    none = 0


class Level(enum.IntEnum):
    low = 1
    high = 2


class Cat(pydantic.BaseModel):
    kind: typing.Literal["cat"]
    lives: Annotated[int, Field(ge=0, le=9)] = 9


class Dog(pydantic.BaseModel):
    kind: typing.Literal["dog"]
    name: str


class Tree(pydantic.BaseModel):
    value: int
    children: list["Tree"] = []


class Pair(typing.NamedTuple):
    left: int
    right: str


class Pydantic:
    """A model of random fields."""

    def __init__(self, rng):
        self.rng = rng

    def whole(self):
        model = self.model(2)
        with warnings.catch_warnings():  # of defaults that cannot be written, which are left out
            warnings.simplefilter("ignore", pydantic.json_schema.PydanticJsonSchemaWarning)
            return model.model_json_schema(mode=self.rng.choice(["validation", "serialization"]))

    def model(self, depth):
        fields = {}
        for name in self.rng.sample(["name", "age", "tags", "price", "x_y", "id", "a"],
                                    self.rng.randint(1, 4)):
            kind = self.type(depth)
            if self.rng.random() < 0.3:
                kind = typing.Union[kind, None]  # noqa: UP007, for a kind may be None
            extra = self.rng.choice([{}, {}, {"description": "d"}, {"examples": [1]}, {"deprecated": True},
                                     {"json_schema_extra": {"x-ui": "slider", "example": 1}}])
            fields[name] = (kind, Field(self.rng.choice([..., ..., None]), **extra))
        config = {"extra": self.rng.choice(["ignore", "forbid", "allow"])}
        return pydantic.create_model(f"M{self.rng.randint(0, 10 ** 9)}", __config__=config, **fields)

    def type(self, depth):
        kinds = [self.plain, self.number, self.string, self.text]
        if depth > 0:
            kinds += [self.container] * 3 + [self.union, lambda depth: self.model(depth - 1)]
        kind = self.rng.choice(kinds)
        return kind(depth)

    def plain(self, _depth):
        return self.rng.choice([
            str, int, float, bool, None, typing.Any, list, dict, tuple, Color, Level, Cat, Tree, Pair,
            typing.Literal["a", 1, None], decimal.Decimal, bytes, pydantic.StrictStr, object])

    def number(self, _depth):
        kind = self.rng.choice([int, float, decimal.Decimal])
        low = self.rng.choice([0, 1, -1, 18, -90] if kind is int else [0, 1, -273.15, 0.5, 1e-3, -90])
        above = self.rng.choice([2, 10, 1000000] if kind is int else [1.5, 2, 10, 100.25, 1e6])
        bounds = {}
        if self.rng.random() < 0.7:
            bounds[self.rng.choice(["ge", "gt"])] = low
        if self.rng.random() < 0.6:
            bounds[self.rng.choice(["le", "lt"])] = low + above
        if self.rng.random() < 0.3:
            bounds["multiple_of"] = self.rng.choice([1, 2, 5, 100] if kind is int else [0.01, 0.5, 0.25])
        if kind is decimal.Decimal:
            bounds = {key: kind(str(value)) for key, value in bounds.items()}
        some = self.rng.choice([kind, kind, pydantic.PositiveInt, pydantic.NonNegativeFloat,
                                pydantic.NegativeInt, pydantic.ByteSize])
        return Annotated[some, Field(**bounds)] if some is kind and bounds else some

    def string(self, _depth):
        fields = self.rng.choice([
            {"min_length": 1}, {"max_length": 20}, {"min_length": 2, "max_length": 9},
            {"pattern": r"^[a-z]+\d*$"}, {"pattern": r"^\d{3}-\d{4}$"}, {"pattern": "^[A-Z]{2,3}$"}])
        return Annotated[str, Field(**fields)]

    def text(self, _depth):
        return self.rng.choice([
            datetime.date, datetime.time, datetime.datetime, datetime.timedelta, uuid.UUID, pydantic.UUID4,
            pathlib.Path, pydantic.HttpUrl, pydantic.AnyUrl, pydantic.FutureDate, pydantic.SecretStr,
            pydantic.Json, pydantic.Base64Bytes, pydantic.IPvAnyAddress, typing.Pattern,
            ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network])

    def container(self, depth):
        inner = self.type(depth - 1)
        few = self.rng.choice([Color, Level, bool, typing.Literal["a", "b", "c"]])
        free = self.rng.choice([int, str, few, few])
        return self.rng.choice([
            list[inner], list[inner], Annotated[list[inner], Field(min_length=1)],
            Annotated[list[inner], Field(min_length=1, max_length=3)], tuple[inner, ...],
            tuple[inner, str], set[few], frozenset[few], set[free],
            dict[str, inner], dict[str, inner], dict[int, inner],
            dict[typing.Literal["a", "b"], inner], dict[Level, inner],
            Annotated[dict[str, inner], Field(min_length=1, max_length=4)],
            dict[Annotated[str, Field(pattern="^[a-z]{1,8}$")], inner]])

    def union(self, depth):
        if self.rng.random() < 0.4:
            return Annotated[Cat | Dog, Field(discriminator="kind")]
        return typing.Union[tuple(self.type(depth - 1) for _ in range(2))]  # noqa: UP007


SAFE = 2 ** 53 - 1
UUID = (r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|"
        r"00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$")
DATE = (r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:"
        r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|"
        r"(?:02)-(?:0[1-9]|1\d|2[0-8])))")
CLOCK = r"(?:(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?"
FORMATS = [
    {"format": "uuid", "pattern": UUID}, {"format": "uri"}, {"format": "emoji"}, {"format": "jwt"},
    {"format": "nanoid", "pattern": "^[a-zA-Z0-9_-]{21}$"},
    {"format": "cuid", "pattern": r"^[cC][^\s-]{8,}$"},
    {"format": "ulid", "pattern": "^[0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{26}$"},
    {"format": "date", "pattern": f"^{DATE}$"}, {"format": "date-time", "pattern": f"^{DATE}T{CLOCK}(?:Z))$"},
    {"format": "ipv4", "pattern": r"^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])\.){3}"
                                  r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])$"},
    {"format": "base64", "contentEncoding": "base64",
     "pattern": r"^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"},
    {"format": "e164", "pattern": r"^\+[1-9]\d{6,14}$"}, {"format": "lowercase", "pattern": "^[^A-Z]*$"},
    {"format": "email", "pattern": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@"
                                   r"([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"},
    {"format": "hostname", "pattern": r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
                                      r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"},
    {"format": "duration", "pattern": r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
                                      r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"},
    {"pattern": "^ab.*"}, {"pattern": ".*-end$"}, {"allOf": [{"pattern": "a"}, {"pattern": "^[a-f]*$"}]},
]


class Zod:
    """What z.toJSONSchema makes of a random z.object, of the targets draft-2020-12 and openapi-3.0."""

    def __init__(self, rng):
        self.rng = rng
        self.openapi = rng.random() < 0.15
        self.defs = {}

    def whole(self):
        schema = self.object(2)
        if not self.openapi:
            schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        return {**schema, "$defs": self.defs} if self.defs else schema

    def object(self, depth):
        names = self.rng.sample(["name", "age", "tags", "price", "x-y", "id", "a"], self.rng.randint(1, 4))
        properties = {name: self.any(depth) for name in names}
        required = [name for name in names if self.rng.random() < 0.6]
        schema = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        extra = self.rng.choice([False, False, {}, None, {"type": "string"}])
        return schema if extra is None else {**schema, "additionalProperties": extra}

    def any(self, depth):
        kinds = [self.string, self.number, self.plain, self.choice]
        if depth > 0:
            kinds += [self.object, self.array, self.tuple, self.record, self.union, self.reference,
                      self.nullable]
        schema = self.rng.choice(kinds)(depth - 1)
        meta = self.rng.choice([{}, {}, {}, {"description": "d"}, {"default": 1}, {"readOnly": True},
                                {"title": "t", "examples": ["e"]}, {"example": "e", "deprecated": True}])
        return {**schema, **meta} if isinstance(schema, dict) else schema

    def string(self, _depth):
        lengths = self.rng.choice([{}, {}, {"minLength": 1}, {"maxLength": 30},
                                   {"minLength": 3, "maxLength": 12}, {"minLength": 5, "maxLength": 5}])
        if self.rng.random() < 0.5:
            return {"type": "string", **lengths}
        if self.rng.random() < 0.1:
            return {"type": "string", "format": "binary", "contentEncoding": "binary",
                    "contentMediaType": "image/png"}
        return {"type": "string", **self.rng.choice(FORMATS)}

    def number(self, _depth):
        if self.rng.random() < 0.3:
            return {"type": "integer", "minimum": -SAFE, "maximum": SAFE}
        schema = {"type": self.rng.choice(["number", "integer"])}
        if self.rng.random() < 0.5:
            schema |= self.bound("minimum", "exclusiveMinimum", self.rng.choice([0, 1, -5, 0.5]))
        if self.rng.random() < 0.5:
            schema |= self.bound("maximum", "exclusiveMaximum", self.rng.choice([7, 10, 100, 99.99, SAFE]))
        if self.rng.random() < 0.2:
            schema["multipleOf"] = self.rng.choice([1, 5, 0.01, 0.5, 10])
        return schema

    def bound(self, key, exclusive, value):
        if self.rng.random() < 0.6:
            return {key: value}
        return {key: value, exclusive: True} if self.openapi else {exclusive: value}

    def plain(self, _depth):
        never = [{"not": {}}] if self.rng.random() < 0.05 else []
        return self.rng.choice([{"type": "boolean"}, {"type": "null"}, {}] + never)

    def choice(self, _depth):
        return self.rng.choice([
            {"type": "string", "enum": ["red", "green", "blue"]}, {"type": "number", "enum": [1, 2]},
            {"type": "string", "const": "on"}, {"type": "number", "const": 4.5},
            {"type": "boolean", "const": True}, {"enum": ["a", 1, None]}])

    def array(self, depth):
        lengths = self.rng.choice([{}, {}, {"minItems": 1}, {"maxItems": 3}, {"minItems": 2, "maxItems": 4}])
        return {"type": "array", "items": self.any(depth), **lengths}

    def tuple(self, depth):
        schema = {"type": "array", "prefixItems": [self.any(depth) for _ in range(self.rng.randint(1, 3))]}
        return {**schema, "items": self.any(depth)} if self.rng.random() < 0.3 else schema

    def record(self, depth):
        literals = [{"type": "string", "const": text} for text in "pq"]
        more = self.rng.choice([{}, {}, {"enum": ["x", "y", "z"]}, {"pattern": "^[a-z]{1,9}$"},
                                {"minLength": 2}, None])
        names = {"anyOf": literals} if more is None else {"type": "string", **more}
        schema = {"type": "object", "propertyNames": names, "additionalProperties": self.any(depth)}
        if "enum" in names and self.rng.random() < 0.5:
            schema["required"] = names["enum"]
        return schema

    def union(self, depth):
        if self.rng.random() < 0.5:
            branches = [{"type": "object", "properties": {
                "kind": {"type": "string", "const": kind}, "v": self.any(depth)},
                "required": ["kind", "v"], "additionalProperties": False} for kind in ("a", "b")]
            more = {"discriminator": {"propertyName": "kind"}} if self.openapi else {}
            return {"oneOf": branches, **more}
        return {"anyOf": [self.any(depth) for _ in range(2)]}

    def nullable(self, depth):
        schema = self.any(depth)
        if self.openapi and isinstance(schema, dict):
            return {**schema, "nullable": True}
        return {"anyOf": [schema, {"type": "null"}]}

    def reference(self, depth):
        name = self.rng.choice(["User", "Item"])
        if name not in self.defs:
            self.defs[name] = {}
            self.defs[name] = {"id": name, **self.object(depth)}
        return {"$ref": f"#/$defs/{name}"}


def random_library_schema(rng):
    return rng.choice([Pydantic, Zod])(rng).whole()


def as_meant(schema):
    """oneOf is anyOf here, as grammar.md says, and OpenAPI 3.0's exclusive limits are those of today."""
    if isinstance(schema, list):
        return [as_meant(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {"anyOf" if key == "oneOf" and isinstance(value, list) else key: as_meant(value)
              for key, value in schema.items()}
    for key, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True:
            schema[exclusive] = schema.pop(key)
    return schema


def faults_of(text, schema):
    """What the library jsonschema says of a text. Numbers are exact decimals for it, and doubles too."""
    faults = []
    for number in (decimal.Decimal, float):
        validator = jsonschema.Draft202012Validator(
            json.loads(json.dumps(as_meant(schema)), parse_float=number), format_checker=FORMAT_CHECKER)
        faults += [error.message for error in validator.iter_errors(json.loads(text, parse_float=number))
                   if number is decimal.Decimal or error.validator != "multipleOf"]
    return faults


def refused_keyword(message):
    """The keyword that a refusal names, or None: then no value is one of the schema."""
    if "none can" in message or "that some value satisfies" in message:
        return None
    return re.search(r"([^.\s]+): expected", message)[1]
